# How our own code is compiled. llama.cpp keeps its own flags.

# Used when it is there, never needed.
find_program(ADASPARK_CCACHE ccache)
if(ADASPARK_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
    set(CMAKE_C_COMPILER_LAUNCHER ${ADASPARK_CCACHE})
    set(CMAKE_CXX_COMPILER_LAUNCHER ${ADASPARK_CCACHE})
endif()

function(adaspark_compile target)
    target_compile_definitions(${target} PRIVATE ADASPARK_VERSION="${PROJECT_VERSION}")
    if(MSVC)
        target_compile_options(${target} PRIVATE /utf-8 /bigobj /W4 $<$<BOOL:${ADASPARK_DEV}>:/WX>)
    else()
        target_compile_options(${target} PRIVATE -Wall -Wextra -Wconversion)
        if(ADASPARK_DEV)
            target_compile_options(${target} PRIVATE -Werror -UNDEBUG)
        endif()
    endif()
    if(ADASPARK_SANITIZE)
        target_compile_options(${target} PRIVATE
            -fsanitize=${ADASPARK_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
        target_compile_definitions(${target} PRIVATE _GLIBCXX_ASSERTIONS)
        target_link_options(${target} PUBLIC -fsanitize=${ADASPARK_SANITIZE})
    endif()
endfunction()
