# llama.cpp and ggml as static libraries: target `llama`. GGML_* options given on the command line reach ggml unchanged.

set(llama_checkout "${ADASPARK_LLAMA_DIR}")
if(NOT llama_checkout)
    set(llama_checkout "$ENV{ADASPARK_LLAMA_DIR}")
endif()
execute_process(
    COMMAND ${Python_EXECUTABLE} third_party/fetch_llama.py "--checkout=${llama_checkout}"
    WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}
    OUTPUT_VARIABLE ADASPARK_LLAMA_SOURCE_DIR OUTPUT_STRIP_TRAILING_WHITESPACE
    RESULT_VARIABLE fetch_result)
if(NOT fetch_result EQUAL 0)
    message(FATAL_ERROR
        "The llama.cpp sources could not be had; the reason is above. Set ADASPARK_LLAMA_DIR (environment or -D) to a "
        "llama.cpp checkout to build from that instead.")
endif()
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS third_party/pins.txt third_party/fetch_llama.py)

set(BUILD_SHARED_LIBS OFF)
# ggml's own thread pool waits with less overhead between two short graphs, and nothing clashes with another OpenMP.
option(GGML_OPENMP "ggml: use OpenMP" OFF)
# A source build runs where it was built. Wheels for other machines say GGML_NATIVE=OFF.
option(GGML_NATIVE "ggml: optimize the build for the current system" ON)
if(APPLE)
    option(GGML_METAL_EMBED_LIBRARY "ggml: embed Metal library" ON)
endif()
set(GGML_CCACHE OFF CACHE INTERNAL "set for all targets in AdaSparkCompile.cmake")
foreach(part IN ITEMS TESTS EXAMPLES TOOLS SERVER APP)
    set(LLAMA_BUILD_${part} OFF CACHE INTERNAL "")
endforeach()
foreach(part IN ITEMS OPENSSL BUILD_UI USE_PREBUILT_UI)
    set(LLAMA_${part} OFF CACHE INTERNAL "")
endforeach()
set(LLAMA_BUILD_COMMON ${ADASPARK_LLAMA_TOOLS} CACHE INTERNAL "")
set(LLAMA_BUILD_MTMD ${ADASPARK_LLAMA_TOOLS} CACHE INTERNAL "")

if(llama_checkout)
    set(ADASPARK_LLAMA_VERSION "llama.cpp from ADASPARK_LLAMA_DIR")
else()
    cmake_path(GET ADASPARK_LLAMA_SOURCE_DIR FILENAME llama_folder)
    string(REPLACE "llama.cpp-" "llama-cpp-python " ADASPARK_LLAMA_VERSION ${llama_folder})
    # Unset, llama.cpp and ggml ask git for these, and the commit git knows here is one of ours.
    set(LLAMA_BUILD_NUMBER 0)
    string(REPLACE " " "-" LLAMA_BUILD_COMMIT ${ADASPARK_LLAMA_VERSION})
    set(GIT_EXE OFF)
endif()

add_subdirectory(${ADASPARK_LLAMA_SOURCE_DIR} llama.cpp EXCLUDE_FROM_ALL SYSTEM)

# Fewer, larger compilations. `llama` does this to its models by itself; other backends do not bear it.
set_target_properties(ggml-cpu PROPERTIES UNITY_BUILD ON)
# On processors with AMX these want the C++ view of ggml's blocks, the files beside them the plain one.
set_property(SOURCE
    ${ADASPARK_LLAMA_SOURCE_DIR}/ggml/src/ggml-cpu/amx/amx.cpp
    ${ADASPARK_LLAMA_SOURCE_DIR}/ggml/src/ggml-cpu/amx/mmq.cpp
    TARGET_DIRECTORY ggml-cpu PROPERTY SKIP_UNITY_BUILD_INCLUSION ON)
# GCC before 12.4, 13.3 and 14 takes the configuration of AMX's tiles for 8 bytes and drops the stores behind them: the
# first product of two rows then ends the process with an illegal instruction.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    set_property(SOURCE ${ADASPARK_LLAMA_SOURCE_DIR}/ggml/src/ggml-cpu/amx/mmq.cpp
        TARGET_DIRECTORY ggml-cpu APPEND PROPERTY COMPILE_OPTIONS -fno-tree-dse -fno-dse)
endif()

# The licences of what is linked travel in the wheel.
if(SKBUILD)
    install(FILES ${ADASPARK_LLAMA_SOURCE_DIR}/LICENSE
        DESTINATION ${SKBUILD_METADATA_DIR}/licenses/llama.cpp COMPONENT adaspark)
    install(DIRECTORY ${ADASPARK_LLAMA_SOURCE_DIR}/licenses/
        DESTINATION ${SKBUILD_METADATA_DIR}/licenses/llama.cpp COMPONENT adaspark)
endif()

if(ADASPARK_LLAMA_TOOLS)
    include(AdaSparkLlamaTools)
endif()
