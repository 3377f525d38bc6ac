# fm3_add_extension(<package> <sources>...)
#
# Builds <package>._C of the sources and installs it into the package. Warnings are errors, on the host, on the device
# and in the assembler; a register spill is a warning, and so are matrix products that the assembler serialises.

function(fm3_add_extension package)
  set(target ${package}_C)
  pybind11_add_module(${target} MODULE NO_EXTRAS ${ARGN})
  set_target_properties(${target} PROPERTIES
    OUTPUT_NAME _C
    CUDA_VISIBILITY_PRESET hidden
    CUDA_COMPILER_LAUNCHER "${Python_EXECUTABLE};${PROJECT_SOURCE_DIR}/cmake/compile_cuda.py"
  )
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}/csrc")
  target_compile_definitions(${target} PRIVATE
    FM3_CUDA_ARCHITECTURE="${CMAKE_CUDA_ARCHITECTURES}"
    FM3_NVCC_VERSION="${CMAKE_CUDA_COMPILER_VERSION}"
  )
  # Messages and assertions name files as the source tree does, wherever it was built.
  set(host_options -Wall -Wextra -Werror "-ffile-prefix-map=${PROJECT_SOURCE_DIR}/=")
  list(JOIN host_options "," host_options_for_nvcc)
  target_compile_options(${target} PRIVATE
    "$<$<COMPILE_LANGUAGE:CXX>:${host_options}>"
    "$<$<COMPILE_LANGUAGE:CUDA>:--Werror=all-warnings;-Xcompiler=${host_options_for_nvcc};-Xptxas=--warning-as-error,--warn-on-spills;--expt-relaxed-constexpr>"
  )
  target_link_libraries(${target} PRIVATE CUDA::cudart_static)
  install(TARGETS ${target} LIBRARY DESTINATION ${package})
endfunction()
