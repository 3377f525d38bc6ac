#include "host/tensor_map.h"

#include <cuda_runtime.h>

#include "host/error.h"

namespace fm3::host {
namespace {

using EncodeTiled = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                                 const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                                 CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

// The driver is reached through the runtime, so that the extension imports on a machine without one.
EncodeTiled encode_tiled() {
  static const EncodeTiled function = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found{};
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found),
          "cudaGetDriverEntryPointByVersion");
    if (found != cudaDriverEntryPointSuccess || entry == nullptr) {
      throw Error("cuTensorMapEncodeTiled: this driver does not have it");
    }
    return reinterpret_cast<EncodeTiled>(entry);
  }();
  return function;
}

// A stride of a dimension of extent 1 is never used, yet must be a legal one.
cuuint64_t stride_bytes(int64_t stride, int64_t extent) { return extent > 1 ? 2 * stride : 128; }

}  // namespace

CUtensorMap make_row_map(const RowTensor& tensor, bool is_bf16, int box_rows) {
  const cuuint64_t extents[5] = {64, static_cast<cuuint64_t>(tensor.rows),
                                 static_cast<cuuint64_t>(tensor.head_dim / 64), static_cast<cuuint64_t>(tensor.heads),
                                 static_cast<cuuint64_t>(tensor.batch)};
  const cuuint64_t strides[4] = {stride_bytes(tensor.row_stride, tensor.rows), 128,
                                 stride_bytes(tensor.head_stride, tensor.heads),
                                 stride_bytes(tensor.batch_stride, tensor.batch)};
  const cuuint32_t box[5] = {64, static_cast<cuuint32_t>(box_rows), static_cast<cuuint32_t>(tensor.head_dim / 64), 1,
                             1};
  const cuuint32_t element_strides[5] = {1, 1, 1, 1, 1};
  CUtensorMap map{};
  check(encode_tiled()(&map, is_bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 5,
                       const_cast<void*>(tensor.data), extents, strides, box, element_strides,
                       CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                       CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
        "cuTensorMapEncodeTiled");
  return map;
}

}  // namespace fm3::host
