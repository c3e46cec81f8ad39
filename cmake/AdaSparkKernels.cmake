# The CPU kernels: the same code compiled once for each instruction set, chosen at run time. Standard library only.

file(GLOB kernel_sources CONFIGURE_DEPENDS kernels/*.cpp)
if(NOT (CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$" AND CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang"))
    list(FILTER kernel_sources EXCLUDE REGEX "kernels_avx")
    set(kernels_x86 OFF)
else()
    set(kernels_x86 ON)
endif()
add_library(adaspark_kernels STATIC ${kernel_sources})
target_include_directories(adaspark_kernels PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
adaspark_compile(adaspark_kernels)
if(NOT MSVC)
    # A product and a sum are one operation where the code says so and nowhere else: all tables give the same bits.
    target_compile_options(adaspark_kernels PRIVATE -ffp-contract=off)
    if(ADASPARK_SANITIZE) # the instrumented code would take the optimiser many minutes, its debug information as many again
        target_compile_options(adaspark_kernels PRIVATE -O1 -g1)
    else()
        target_compile_options(adaspark_kernels PRIVATE -O3)
    endif()
endif()
if(kernels_x86)
    target_compile_definitions(adaspark_kernels PUBLIC ADASPARK_KERNELS_X86)
    set(avx2 -mavx2 -mfma -mf16c)
    set_source_files_properties(kernels/kernels_avx2.cpp PROPERTIES COMPILE_OPTIONS "${avx2}")
    set_source_files_properties(kernels/kernels_avxvnni.cpp PROPERTIES COMPILE_OPTIONS "${avx2};-mavxvnni")
    # GCC 12 takes the undefined sources of unmasked AVX-512 intrinsics in its own header for mistakes.
    set_source_files_properties(kernels/kernels_avx512vnni.cpp PROPERTIES
        COMPILE_OPTIONS "${avx2};-mavx512f;-mavx512bw;-mavx512vl;-mavx512vnni;-Wno-uninitialized;-Wno-maybe-uninitialized")
endif()
