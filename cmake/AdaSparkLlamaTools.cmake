# llama.cpp's own programs from the same sources, for bench/: targets `llama-server` and `llama-speculative-simple`.
# llama.cpp's switch for its tools would want all of them; these two need only the folders named here.
foreach(folder IN ITEMS tools/ui tools/server examples/speculative-simple)
    add_subdirectory(${ADASPARK_LLAMA_SOURCE_DIR}/${folder} llama.cpp/${folder} EXCLUDE_FROM_ALL SYSTEM)
endforeach()
add_custom_target(llama_tools DEPENDS llama-server llama-speculative-simple)
include(${CMAKE_CURRENT_SOURCE_DIR}/bench/draft_reference.cmake)
