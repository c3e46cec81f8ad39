#include "kernels/kernels.h"

#include "kernels/tables.h"

#include <cstring>
#include <initializer_list>

#ifdef ADASPARK_KERNELS_X86
#include <cpuid.h>
#endif
#ifdef ADASPARK_KERNELS_ARM
#if defined(__linux__)
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif
#endif

#if defined(ADASPARK_KERNELS_X86) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace adaspark::kernels {

namespace {

#ifdef ADASPARK_KERNELS_X86
bool has_avx2() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

bool has_avx_vnni() { // leaf 7, subleaf 1, EAX bit 4; older compilers know no name for it
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & (1U << 4)) != 0;
}

bool has_avx512_vnni() {
    return __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vnni");
}

// Leaf 7: ECX bit 8 (GFNI), EDX bits 24 and 25 (tiles, of int8); and Linux's leave for this process to use tiles.
bool has_amx() {
#if defined(__linux__)
    unsigned a = 0, b = 0, c = 0, d = 0;
    constexpr long kRequest = 0x1023, kTileData = 18; // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (c >> 8 & 1) == 1 && (d >> 24 & 3) == 3 &&
           syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
#else
    return false;
#endif
}
#endif

#ifdef ADASPARK_KERNELS_ARM
#if defined(__linux__) // by number: older headers know no name for the second
bool has_dotprod() { return (getauxval(AT_HWCAP) & (1UL << 20)) != 0; }
bool has_i8mm() { return (getauxval(AT_HWCAP2) & (1UL << 13)) != 0; }
#elif defined(__APPLE__)
bool has_feature(const char * name) {
    int value = 0;
    std::size_t size = sizeof(value);
    return sysctlbyname(name, &value, &size, nullptr, 0) == 0 && value != 0;
}
bool has_dotprod() { return has_feature("hw.optional.arm.FEAT_DotProd"); }
bool has_i8mm() { return has_feature("hw.optional.arm.FEAT_I8MM"); }
#else
bool has_dotprod() { return false; }
bool has_i8mm() { return false; }
#endif
#endif

} // namespace

const Kernels * kernels_named(const char * name) {
    const auto is = [&](const Kernels & table) { return std::strcmp(name, table.name) == 0; };
    if (is(kPortable)) {
        return &kPortable;
    }
#ifdef ADASPARK_KERNELS_X86
    if (is(kAvx2) && has_avx2()) {
        return &kAvx2;
    }
    if (is(kAvxVnni) && has_avx2() && has_avx_vnni()) {
        return &kAvxVnni;
    }
    if (is(kAvx512Vnni) && has_avx2() && has_avx512_vnni()) {
        return &kAvx512Vnni;
    }
    if (is(amx_table()) && has_avx2() && has_avx512_vnni() && has_amx()) {
        return &amx_table();
    }
#endif
#ifdef ADASPARK_KERNELS_ARM
    if (is(kNeon)) {
        return &kNeon;
    }
    if (is(kDotprod) && has_dotprod()) {
        return &kDotprod;
    }
    if (is(kI8mm) && has_dotprod() && has_i8mm()) {
        return &kI8mm;
    }
#endif
    return nullptr;
}

const Kernels & kernels_best() {
    static const Kernels & best = []() -> const Kernels & {
        for (const char * name : {"amx", "avx512vnni", "avxvnni", "avx2", "i8mm", "dotprod", "neon"}) {
            if (const Kernels * table = kernels_named(name)) {
                return *table;
            }
        }
        return kPortable;
    }();
    return best;
}

} // namespace adaspark::kernels
