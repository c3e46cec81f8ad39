# The reference of draft_parity.py: a program on llama.cpp's common library, with the llama.cpp tools.
add_executable(draft_reference EXCLUDE_FROM_ALL ${CMAKE_CURRENT_LIST_DIR}/draft_reference.cpp)
target_link_libraries(draft_reference PRIVATE llama-common llama)
adaspark_compile(draft_reference)
add_dependencies(llama_tools draft_reference)
