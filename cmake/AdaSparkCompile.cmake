# How our own code is compiled. llama.cpp keeps its own flags.

# Used when it is there, never needed.
find_program(ADASPARK_CCACHE ccache)
if(ADASPARK_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
    set(CMAKE_C_COMPILER_LAUNCHER ${ADASPARK_CCACHE})
    set(CMAKE_CXX_COMPILER_LAUNCHER ${ADASPARK_CCACHE})
endif()

function(adaspark_compile target)
    set_target_properties(${target} PROPERTIES CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF)
    target_compile_definitions(${target} PRIVATE ADASPARK_VERSION="${PROJECT_VERSION}")
    # Only in development: a compiler newer than ours must not stop an installation with its new warnings.
    if(ADASPARK_DEV AND MSVC)
        target_compile_options(${target} PRIVATE /W4 /WX /UNDEBUG)
    elseif(ADASPARK_DEV)
        target_compile_options(${target} PRIVATE -Wall -Wextra -Wconversion -Werror -UNDEBUG)
    endif()
    if(MSVC)
        target_compile_options(${target} PRIVATE /utf-8 /bigobj)
    endif()
    if(ADASPARK_SANITIZE)
        target_compile_options(${target} PRIVATE
            -fsanitize=${ADASPARK_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
        target_compile_definitions(${target} PRIVATE _GLIBCXX_ASSERTIONS)
        target_link_options(${target} PUBLIC -fsanitize=${ADASPARK_SANITIZE})
    endif()
endfunction()
