# fm3_find_nvshmem(<folder> <why not>)
#
# Looks for NVSHMEM as its PyPI wheel installs it beside the Python that builds: FM3_NVSHMEM, or the package
# nvidia.nvshmem. Sets its folder, and <why not> to a sentence where there is none, else to nothing.

set(FM3_NVSHMEM "" CACHE PATH "NVSHMEM's folder, with include and lib; the wheel's by default")

function(fm3_find_nvshmem folder_name why_not_name)
  set(folder "${FM3_NVSHMEM}")
  if(NOT folder)
    execute_process(
      COMMAND "${Python_EXECUTABLE}" -c
        "import importlib.util as u; s = u.find_spec('nvidia') and u.find_spec('nvidia.nvshmem'); print(next(iter(s.submodule_search_locations)) if s else '', end='')"
      OUTPUT_VARIABLE folder ERROR_QUIET RESULT_VARIABLE code)
  endif()
  set(${folder_name} "" PARENT_SCOPE)
  if(NOT folder)
    set(${why_not_name} "NVSHMEM was not found (pip install nvidia-nvshmem-cu13, then build without isolation; or -D FM3_NVSHMEM=folder)" PARENT_SCOPE)
    return()
  endif()
  foreach(needed include/nvshmem.h lib/libnvshmem_device.a lib/libnvshmem_host.so.3)
    if(NOT EXISTS "${folder}/${needed}")
      set(${why_not_name} "${folder} has no ${needed}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  set(${folder_name} "${folder}" PARENT_SCOPE)
  set(${why_not_name} "" PARENT_SCOPE)
endfunction()
