# llama.cpp's own programs from the same sources, for bench/: targets `llama-server` and `llama-speculative-simple`.
# llama.cpp's switch for its tools would want all of them; these two need only the folders named here.
# Their scripts look for files of llama.cpp from its project's root, which here is ours.
set(adaspark_source_dir ${PROJECT_SOURCE_DIR})
set(PROJECT_SOURCE_DIR ${ADASPARK_LLAMA_SOURCE_DIR})
foreach(folder IN ITEMS tools/ui tools/server examples/speculative-simple)
    add_subdirectory(${ADASPARK_LLAMA_SOURCE_DIR}/${folder} llama.cpp/${folder} EXCLUDE_FROM_ALL SYSTEM)
endforeach()
set(PROJECT_SOURCE_DIR ${adaspark_source_dir})
add_custom_target(llama_tools DEPENDS llama-server llama-speculative-simple)
include(${CMAKE_CURRENT_SOURCE_DIR}/bench/draft_reference.cmake)
