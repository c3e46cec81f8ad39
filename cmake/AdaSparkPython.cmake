# The interpreter and the extension modules. Modules are installed by the component "adaspark", which is all a wheel takes.

set(python_components Interpreter)
if(ADASPARK_PYTHON)
    list(APPEND python_components Development.Module)
endif()
find_package(Python 3.10 REQUIRED COMPONENTS ${python_components})

# pip's builds are told where build requirements are; a plain CMake build asks the interpreter.
function(adaspark_ask_python variable code)
    execute_process(
        COMMAND ${Python_EXECUTABLE} -c "${code}"
        OUTPUT_VARIABLE answer OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    set(${variable} "${answer}" PARENT_SCOPE)
endfunction()

if(ADASPARK_PYTHON)
    set(PYBIND11_FINDPYTHON ON)
    if(NOT SKBUILD AND NOT pybind11_DIR)
        adaspark_ask_python(pybind11_DIR "import pybind11; print(pybind11.get_cmake_dir())")
    endif()
    find_package(pybind11 3 CONFIG REQUIRED)
endif()

function(adaspark_install_module name)
    if(CMAKE_SYSTEM_NAME STREQUAL "Linux")
        # Hidden visibility does not cover what code compiled elsewhere, or the standard library's templates, bring along.
        set(map ${PROJECT_SOURCE_DIR}/cmake/module.map)
        target_link_options(${name} PRIVATE -Wl,--version-script=${map})
        set_property(TARGET ${name} APPEND PROPERTY LINK_DEPENDS ${map})
    endif()
    install(TARGETS ${name} DESTINATION adaspark COMPONENT adaspark)
endfunction()

# The bindings hold no hot code, and most of the time our own code takes to compile is theirs: no link-time optimisation
# (NO_EXTRAS) and a low level of the ordinary one.
function(adaspark_module name)
    pybind11_add_module(${name} MODULE NO_EXTRAS ${ARGN})
    adaspark_compile(${name})
    if(NOT MSVC)
        target_compile_options(${name} PRIVATE -O1)
    endif()
    adaspark_install_module(${name})
endfunction()

function(adaspark_cython_module name source)
    if(NOT SKBUILD)
        adaspark_ask_python(cython_modules "import cython_cmake.cmake as c; print(*c.__path__)")
        list(APPEND CMAKE_MODULE_PATH ${cython_modules})
    endif()
    find_package(Cython MODULE REQUIRED)
    include(UseCython)
    cython_transpile(${source} LANGUAGE CXX OUTPUT_VARIABLE generated MODULE_NAME adaspark.${name})
    python_add_library(${name} MODULE WITH_SOABI ${generated})
    adaspark_install_module(${name})
endfunction()
