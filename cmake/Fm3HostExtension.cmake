# fm3_add_host_extension(<package> [NAME <name>] <sources>...)
#
# Builds <package>.<name>, by default <package>._C, of plain C++17 sources and installs it into the package. Warnings are
# errors.

function(fm3_add_host_extension package)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "NAME" "")
  if(NOT arg_NAME)
    set(arg_NAME _C)
  endif()
  set(target ${package}${arg_NAME})
  pybind11_add_module(${target} MODULE NO_EXTRAS ${arg_UNPARSED_ARGUMENTS})
  set_target_properties(${target} PROPERTIES
    OUTPUT_NAME ${arg_NAME}
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
