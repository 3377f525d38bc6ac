# fm3_add_host_extension(<package> <sources>...)
#
# Builds <package>._C of plain C++17 sources and installs it into the package. Warnings are errors.

function(fm3_add_host_extension package)
  set(target ${package}_C)
  pybind11_add_module(${target} MODULE NO_EXTRAS ${ARGN})
  set_target_properties(${target} PROPERTIES
    OUTPUT_NAME _C
    LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/${package}"
    CXX_STANDARD 17
    CXX_STANDARD_REQUIRED ON
    CXX_EXTENSIONS OFF
    CXX_VISIBILITY_PRESET hidden
  )
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}/csrc")
  target_compile_options(${target} PRIVATE -Wall -Wextra -Werror "-ffile-prefix-map=${PROJECT_SOURCE_DIR}/=")
  # Counting bits is an instruction of every x86-64 since 2008, which compilers use only when told that it is there.
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|amd64")
    target_compile_options(${target} PRIVATE -mpopcnt)
  endif()
  install(TARGETS ${target} LIBRARY DESTINATION ${package})
endfunction()
