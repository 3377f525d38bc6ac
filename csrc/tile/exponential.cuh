// 2^x on the units for multiply and add, for a share of the exponentials: the special-function unit does 16 a cycle, half
// of what a head dimension of 128 asks for.
#pragma once

namespace fm3::tile {

// Relative error below 7.5e-5, a sixth of a bf16 rounding; x up to 127, and everything below -125 gives 2^-125, so not for
// scores that may be -inf. 2^x = 2^n p(x - n) with n the nearest integer and p the best cubic on [-1/2, 1/2].
__device__ __forceinline__ float exp2_by_polynomial(float x) {
  constexpr float kShift = 12582912.f;  // 1.5 * 2^23: adding it leaves n in the low bits
  const float clamped = fmaxf(x, -125.f);
  const float shifted = clamped + kShift;
  const float fraction = clamped - (shifted - kShift);
  const float cubic =
      fmaf(fmaf(fmaf(0.05517166f, fraction, 0.24261112f), fraction, 0.69326099f), fraction, 0.99992807f);
  return __int_as_float((__float_as_int(shifted) << 23) + __float_as_int(cubic));
}

}  // namespace fm3::tile
