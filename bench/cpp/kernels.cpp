// What the kernels reach beside what the machine can: products of 1 to 64 rows with weights that come from memory, for
// every format and instruction set, the read bandwidth, and the int8 products of a weight block held in the first
// cache. JSON lines to stdout. usage: kernel_bench [threads] [mebibytes of weights] [inputs] [kernels]
#include "kernels/kernels.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#ifdef ADASPARK_KERNELS_X86
#include <immintrin.h>
#endif

#if defined(__linux__)
#include <sys/mman.h>
#endif

using namespace adaspark::kernels;

namespace {

constexpr int kRepeats = 7;
volatile int32_t g_keep = 0; // results end here, so that no work is dropped
constexpr int32_t kMostRows = 64;
constexpr int32_t kCall = 2; // panels of a call: as few as a forward asks for

double seconds(const std::function<void()> & f) {
    const auto begin = std::chrono::steady_clock::now();
    f();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Median time of f(thread) on all threads at once.
double median_of(int threads, const std::function<void(int)> & f) {
    std::vector<double> times;
    for (int i = 0; i < kRepeats; ++i) {
        times.push_back(seconds([&] {
            std::vector<std::thread> others;
            for (int t = 1; t < threads; ++t) {
                others.emplace_back(f, t);
            }
            f(0);
            for (std::thread & other : others) {
                other.join();
            }
        }));
    }
    std::sort(times.begin(), times.end());
    return times[kRepeats / 2];
}

struct Pages { // on large pages where the system has them
    explicit Pages(std::size_t n) : bytes((n + kLarge - 1) / kLarge * kLarge) {
        data = static_cast<uint8_t *>(std::aligned_alloc(kLarge, bytes));
#if defined(__linux__) && defined(MADV_HUGEPAGE)
        madvise(data, bytes, MADV_HUGEPAGE);
#endif
        std::memset(data, 0x3b, bytes); // ordinary numbers in every format: sums that are denormal would be slow
    }
    ~Pages() { std::free(data); }
    static constexpr std::size_t kLarge = std::size_t{2} << 20;
    std::size_t bytes;
    uint8_t * data;
};

double read_bandwidth(int threads, const Pages & pages) { // bytes a second
    constexpr std::size_t kAhead = 8192 / 8;              // words: as far as the kernels ask ahead
    std::atomic<uint64_t> all{0};
    const double time = median_of(threads, [&](int thread) {
        const std::size_t words = pages.bytes / 8 / static_cast<std::size_t>(threads);
        const auto * at = reinterpret_cast<const uint64_t *>(pages.data) + words * static_cast<std::size_t>(thread);
        uint64_t sum[8] = {};
        for (std::size_t i = 0; i + 8 <= words; i += 8) {
#if defined(__GNUC__)
            __builtin_prefetch(at + i + kAhead);
#endif
            for (std::size_t j = 0; j < 8; ++j) {
                sum[j] += at[i + j];
            }
        }
        for (const uint64_t s : sum) {
            all += s;
        }
    });
    return static_cast<double>(pages.bytes) / time;
}

#ifdef ADASPARK_KERNELS_X86

constexpr int kSums = 12; // independent ones, more than the latency of a multiply-add takes

// Products of bytes a call makes in registers alone: what no kernel can exceed.
__attribute__((target("avx512f,avx512vnni"), noinline)) double peak_avx512vnni(int64_t turns) {
    __m512i sum[kSums] = {};
    const __m512i a = _mm512_set1_epi8(3);
    for (int64_t i = 0; i < turns; ++i) {
#pragma GCC unroll 12
        for (int j = 0; j < kSums; ++j) {
            sum[j] = _mm512_dpbusd_epi32(sum[j], a, a);
        }
    }
    int32_t out[16 * kSums];
    for (int j = 0; j < kSums; ++j) {
        _mm512_storeu_si512(out + 16 * j, sum[j]);
    }
    g_keep = static_cast<int32_t>(std::accumulate(std::begin(out), std::end(out), int64_t{0}));
    return 64.0 * kSums * static_cast<double>(turns);
}

__attribute__((target("avx2"), noinline)) double peak_avx2(int64_t turns) {
    __m256i sum[kSums] = {};
    const __m256i a = _mm256_set1_epi8(3);
    for (int64_t i = 0; i < turns; ++i) {
#pragma GCC unroll 12
        for (int j = 0; j < kSums; ++j) { // as the kernels do it: sums of 16 bits
            sum[j] = _mm256_add_epi16(sum[j], _mm256_maddubs_epi16(_mm256_or_si256(a, sum[j]), a));
        }
    }
    int32_t out[8 * kSums];
    for (int j = 0; j < kSums; ++j) {
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(out + 8 * j), sum[j]);
    }
    g_keep = static_cast<int32_t>(std::accumulate(std::begin(out), std::end(out), int64_t{0}));
    return 32.0 * kSums * static_cast<double>(turns);
}

#endif

void print_peak(int threads) {
#ifdef ADASPARK_KERNELS_X86
    constexpr int64_t kTurns = 1 << 22;
    constexpr std::pair<const char *, double (*)(int64_t)> kPeaks[] = {{"avx512vnni", peak_avx512vnni},
                                                                       {"avx2", peak_avx2}};
    for (const auto & [name, peak] : kPeaks) {
        if (kernels_named(name) == nullptr) {
            continue;
        }
        const double time = median_of(threads, [peak = peak](int) { peak(kTurns); });
        std::printf("{\"what\": \"peak\", \"kernels\": \"%s\", \"threads\": %d, \"gmac_s\": %.1f}\n", name, threads,
                    peak(1) * static_cast<double>(kTurns) * threads / time / 1e9);
    }
#else
    (void)threads;
#endif
}

} // namespace

int main(int argc, char ** argv) {
    const int threads = argc > 1 ? std::atoi(argv[1]) : 2;
    const std::size_t mebibytes = argc > 2 ? static_cast<std::size_t>(std::atoi(argv[2])) : 128;
    const int32_t k = (argc > 3 ? std::atoi(argv[3]) : 1536) / kSuper * kSuper;
    const Pages pages(mebibytes << 20);
    std::printf("{\"what\": \"read\", \"threads\": %d, \"gb_s\": %.1f}\n", threads,
                read_bandwidth(threads, pages) / 1e9);

    print_peak(threads);

    std::vector<float> x(static_cast<std::size_t>(kMostRows) * static_cast<std::size_t>(k));
    std::mt19937 rng(1);
    std::normal_distribution<float> normal;
    std::generate(x.begin(), x.end(), [&] { return normal(rng); });
    const std::size_t blocks = x.size() / kBlock;
    std::vector<int8_t> q((blocks + 1) * kCodes);
    std::vector<float> d(blocks), dsum(blocks);
    std::vector<int32_t> minus8(blocks), minus8_half(2 * blocks);

    for (const char * name : {"amx", "avx512vnni", "avxvnni", "avx2", "i8mm", "dotprod", "neon", "portable"}) {
        const Kernels * table = argc <= 4 || std::strcmp(argv[4], name) == 0 ? kernels_named(name) : nullptr;
        if (table == nullptr) {
            continue;
        }
        for (int32_t f = 0; f <= static_cast<int32_t>(Format::q6_k); ++f) {
            const auto format = static_cast<Format>(f);
            const std::size_t panel = panel_bytes(format, k);
            const auto in_memory = static_cast<int32_t>(pages.bytes / panel);
            for (const int32_t rows : {1, 2, 4, 8, 16, 64}) {
                if (std::strcmp(name, "portable") == 0 && rows > 1) {
                    continue; // seconds each
                }
                const Activations a = {x.data(),      first_code(q.data()), d.data(), dsum.data(),
                                       minus8.data(), minus8_half.data(),   rows};
                for (int32_t r = 0; r < rows; ++r) {
                    table->quantize(x.data() + static_cast<std::ptrdiff_t>(r) * k, 0, k, r, a);
                }
                // Once over weights in memory, and as often over weights in the cache.
                double time[2];
                for (int cached = 0; cached < 2; ++cached) {
                    time[cached] = median_of(threads, [&](int thread) {
                        const int32_t begin = in_memory / kCall * thread / threads * kCall;
                        const int32_t end = in_memory / kCall * (thread + 1) / threads * kCall;
                        std::vector<float> out(static_cast<std::size_t>(rows * kCall * kColumns));
                        const Session session(*table);
                        for (int32_t p = begin; p < end; p += kCall) {
                            const int32_t at = cached != 0 ? begin : p;
                            table->gemm({format, pages.data, k, at, at + kCall, a, rows, out.data(), kCall * kColumns,
                                         nullptr, false});
                        }
                    });
                }
                const double bytes = static_cast<double>(panel) * in_memory;
                const double products = static_cast<double>(in_memory) * kColumns * k * rows;
                std::printf(
                    "{\"what\": \"gemm\", \"kernels\": \"%s\", \"format\": \"%s\", \"rows\": %d, \"gb_s\": %.1f, "
                    "\"gmac_s\": %.1f, \"cached_gmac_s\": %.1f}\n",
                    name, format_name(format), rows, bytes / time[0] / 1e9, products / time[0] / 1e9,
                    products / time[1] / 1e9);
                std::fflush(stdout);
            }
        }
    }
    return 0;
}
