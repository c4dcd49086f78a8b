// The code of the tile kernels, for the instruction set that the including source is compiled for. Everything
// here is local to that source, and nothing is an inline function of a library: a linker that merged such a
// function of two sources could hand the instructions of one machine to another.
#pragma once

#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

#include "shared/kernels/tile_kernels.h"

namespace cp {
namespace {

// Lanes of a vector register; and the size of a panel's product, kPanelRows rows of kVectors vectors. Its
// accumulators stay in registers beside kVectors of b and one broadcast element of a: 8 x 3 + 4 of the 32 of
// AVX-512, 4 x 3 + 4 of the 16 of AVX2, and 4 x 2 + 3 of the 16 of SSE2.
#if defined(__AVX512F__)
constexpr int kLanes = 16, kVectors = 3, kPanelRows = 8;
#elif defined(__AVX2__) && defined(__FMA__)
constexpr int kLanes = 8, kVectors = 3, kPanelRows = 4;
#else
constexpr int kLanes = 4, kVectors = 2, kPanelRows = 4;
#endif
constexpr int kWidth = kLanes * kVectors;
// How many weights are summed up in a row. Derived: 16 such sums are those of a forward tile (256 keys), so
// both chains of additions are as short as possible (kWeightChain of tiled_attention.h).
constexpr std::int64_t kSumRows = 16;

typedef float Vector __attribute__((vector_size(kLanes * sizeof(float))));
typedef std::int32_t Integers __attribute__((vector_size(kLanes * sizeof(float))));
typedef std::uint32_t Unsigned __attribute__((vector_size(kLanes * sizeof(float))));
typedef std::uint64_t Wide __attribute__((vector_size(kLanes * sizeof(double))));
typedef float Unaligned __attribute__((vector_size(kLanes * sizeof(float)), aligned(4), may_alias));
typedef std::int32_t AliasingInteger __attribute__((may_alias));

#define CP_INLINE inline __attribute__((always_inline))

CP_INLINE Vector load(const float* from) { return *reinterpret_cast<const Unaligned*>(from); }
CP_INLINE void store(float* to, Vector value) { *reinterpret_cast<Unaligned*>(to) = value; }
CP_INLINE Vector fill(float value) { return value - Vector{}; }
CP_INLINE Vector larger(Vector a, Vector b) { return a > b ? a : b; }

// sum + low += term, where sum is the nearest float of both. What the addition rounds off is found exactly
// (Knuth's TwoSum) and kept in low; only low's own additions round.
CP_INLINE void add_exactly(float* sum, float* low, Vector term) {
  const Vector before = load(sum), after = before + term, added = after - before;
  store(low, load(low) + ((before - (after - added)) + (term - added)));
  store(sum, after);
}

// ---- products ----

// How a term is made of an element of a and a row of b. Floats: a product.
struct Products {
  static CP_INLINE Vector broadcast(const float* a) { return fill(*a); }
  static CP_INLINE void add(Vector& sum, Vector a, Vector b) { sum += a * b; }
};

#if defined(__AVX512BF16__)
// Both are pairs of bf16, in the bits of a float: two products, each added in f32.
struct PairProducts {
  static CP_INLINE Vector broadcast(const float* a) {
    return (Vector)(*reinterpret_cast<const AliasingInteger*>(a) - Integers{});
  }
  static CP_INLINE void add(Vector& sum, Vector a, Vector b) {
    sum = (Vector)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
  }
};
#endif

// kPanelRows x kN vectors of c, which stay in registers. a(m, k) = a[m * kRow + k * kColumn].
template <class Terms, int kN, int kRow, int kColumn>
CP_INLINE void multiply_registers(TileProduct product, const float* a, const float* b, float* c) {
  bool add = product.accumulate;
  std::int64_t left = product.depth;
  do {
    Vector sums[kPanelRows][kN];
#pragma GCC unroll 16
    for (int m = 0; m < kPanelRows; ++m) {
#pragma GCC unroll 4
      for (int n = 0; n < kN; ++n) sums[m][n] = Vector{};
    }
    // 80 terms are one chain of 80, and not one of 64 and a rest that costs as much to add.
    const std::int64_t depth = left < product.chain * 3 / 2 ? left : product.chain;
    for (std::int64_t k = 0; k < depth; ++k) {
      Vector row[kN];
#pragma GCC unroll 4
      for (int n = 0; n < kN; ++n) row[n] = load(b + n * kLanes);
#pragma GCC unroll 16
      for (int m = 0; m < kPanelRows; ++m) {
        const Vector factor = Terms::broadcast(a + m * kRow);
#pragma GCC unroll 4
        for (int n = 0; n < kN; ++n) Terms::add(sums[m][n], factor, row[n]);
      }
      a += kColumn;
      b += product.b_row;
    }
#pragma GCC unroll 16
    for (int m = 0; m < kPanelRows; ++m) {
#pragma GCC unroll 4
      for (int n = 0; n < kN; ++n) {
        float* out = c + m * product.c_row + n * kLanes;
        store(out, add ? load(out) + sums[m][n] : sums[m][n]);
      }
    }
    add = true;
    left -= depth;
  } while (left > 0);
}

template <class Terms, int kN, int kRow, int kColumn>
void multiply_columns(TileProduct product, std::int64_t a_panel, std::int64_t first_vector) {
  const float* a = product.a;
  float* c = product.c + first_vector * kLanes;
  for (std::int64_t m = 0; m < product.rows; m += kPanelRows) {
    multiply_registers<Terms, kN, kRow, kColumn>(product, a, product.b + first_vector * kLanes, c);
    a += a_panel;
    c += kPanelRows * product.c_row;
  }
}

template <class Terms, int kRow, int kColumn>
void multiply(TileProduct product, std::int64_t a_panel) {
  for (std::int64_t done = 0; done < product.vectors;) {
    const std::int64_t left = product.vectors - done;
    const std::int64_t parts = (left + kVectors - 1) / kVectors;
    const std::int64_t next = (left + parts - 1) / parts;  // 4 vectors are 2 and 2, not 3 and 1
    if (next == 1) multiply_columns<Terms, 1, kRow, kColumn>(product, a_panel, done);
    if (next == 2) multiply_columns<Terms, 2, kRow, kColumn>(product, a_panel, done);
    if constexpr (kVectors == 3) {
      if (next == 3) multiply_columns<Terms, 3, kRow, kColumn>(product, a_panel, done);
    }
    done += next;
  }
}

void multiply_panels(TileProduct product) { multiply<Products, 1, kPanelRows>(product, product.a_panel); }
void multiply_tile(TileProduct product) { multiply<Products, kWidth, 1>(product, kPanelRows * kWidth); }
#if defined(__AVX512BF16__)
void multiply_pairs(TileProduct product) { multiply<PairProducts, 1, kPanelRows>(product, product.a_panel); }
#endif

// ---- exponentials ----

// exp(x) = 2^n exp(r) with n = round(x / ln 2) and |r| <= ln 2 / 2. The polynomial's relative error is 2^-28;
// ln 2 is split in two so that n times its first part is exact (Cody and Waite); roundings add up to less
// than 2 ulp.
CP_INLINE Vector exponential_of(Vector x) {
  constexpr float kRound = 0x1.8p23f;  // adding it rounds to an integer, which is then in the low bits
  constexpr float kLog2e = 0x1.715476p0f, kLn2High = 0x1.63p-1f, kLn2Low = -0x1.bd0106p-13f;
  const Vector shifted = x * kLog2e + kRound;
  const Vector n = shifted - kRound;
  const Vector r = (x - n * kLn2High) - n * kLn2Low;
  Vector p = 0x1.6a23ccp-10f * r + 0x1.123a2p-7f;
  p = p * r + 0x1.5558f2p-5f;
  p = p * r + 0x1.555492p-3f;
  p = p * r + 0x1.fffffcp-2f;
  p = (p * r) * r + r + 1.0f;
  // 2p * 2^(n-1), so that n = 128 is no overflow.
  const Integers exponent = (Integers)shifted + (126 - 0x4b400000);
  // Below -86.9, 2^(n-1) would leave the normal numbers (n < -125), and exp(x) is less than 2 * 10^-38: zero.
  // Above 88.73, exp(x) is more than the largest float (its logarithm is 88.7228).
  const Vector result = (p + p) * (Vector)(exponent << 23);
  const Vector low = x < -86.9f ? Vector{} : result;
  return x > 88.73f ? fill(__builtin_inff()) : low;
}

// All ones where the bit of the lane is set.
CP_INLINE Integers lanes_of(std::uint64_t bits) {
  Integers bit;
#pragma GCC unroll 16
  for (int lane = 0; lane < kLanes; ++lane) bit[lane] = 1 << lane;
  return ((static_cast<std::int32_t>(bits & 0xffffffffu) - Integers{}) & bit) != 0;
}

void scale_scores(TileBlock block, float scale, float* greatest) {
  for (std::int64_t v = block.first_vector; v < block.first_vector + block.vectors; ++v) {
    float* column = block.tile + v * kLanes;
    Vector most = load(greatest + v * kLanes);
    for (std::int64_t row = 0; row < block.rows; ++row) {
      Vector score = load(column + row * kWidth) * scale;
      if (block.mask != nullptr) {
        score = lanes_of(block.mask[row] >> (v * kLanes)) ? score : fill(-__builtin_inff());
      }
      store(column + row * kWidth, score);
      most = larger(score, most);
    }
    store(greatest + v * kLanes, most);
  }
}

void exponentials(TileBlock block, const float* base, float* sum, float* sum_low) {
  for (std::int64_t v = block.first_vector; v < block.first_vector + block.vectors; ++v) {
    float* column = block.tile + v * kLanes;
    Vector least = load(base + v * kLanes);
    least = least == -__builtin_inff() ? Vector{} : least;
    Vector total{};
    for (std::int64_t first = 0; first < block.rows; first += kSumRows) {
      const std::int64_t end = first + kSumRows < block.rows ? first + kSumRows : block.rows;
      Vector part{};
      for (std::int64_t row = first; row < end; ++row) {
        const Vector weight = exponential_of(load(column + row * kWidth) - least);
        store(column + row * kWidth, weight);
        part += weight;
      }
      total += part;
    }
    add_exactly(sum + v * kLanes, sum_low + v * kLanes, total);
  }
}

void gradients(TileBlock scores, float* products, float scale, const float* lse, const float* delta) {
  for (std::int64_t v = scores.first_vector; v < scores.first_vector + scores.vectors; ++v) {
    float* column = scores.tile + v * kLanes;
    float* product = products + v * kLanes;
    const Vector row_lse = load(lse + v * kLanes), row_delta = load(delta + v * kLanes);
    for (std::int64_t row = 0; row < scores.rows; ++row) {
      Vector p = exponential_of(load(column + row * kWidth) * scale - row_lse);
      Vector ds = p * (load(product + row * kWidth) - row_delta) * scale;
      if (scores.mask != nullptr) {
        const Integers counts = lanes_of(scores.mask[row] >> (v * kLanes));
        p = counts ? p : Vector{};
        ds = counts ? ds : Vector{};
      }
      store(column + row * kWidth, p);
      store(product + row * kWidth, ds);
    }
  }
}

// ---- what changes scores and weights ----

// Below 0.625 in size x + x z p(z) with z = x^2, where p has the least relative error (2^-27.7); else
// 1 - 2 / (exp(2 |x|) + 1), whose error is small beside 1.
CP_INLINE Vector hyperbolic_tangent_of(Vector x) {
  constexpr std::uint32_t kSign = 0x80000000u;
  const Unsigned sign = (Unsigned)x & kSign;
  const Vector size = (Vector)((Unsigned)x & ~kSign), z = x * x;
  Vector p = -0x1.75e1c6p-8f * z + 0x1.52269ap-6f;
  p = p * z - 0x1.b83c5ap-5f;
  p = p * z + 0x1.110726p-3f;
  p = p * z - 0x1.555532p-2f;
  const Vector small = x + x * z * p;
  const Vector large = 1.0f - 2.0f / (exponential_of(size + size) + 1.0f);
  return size < 0.625f ? small : (Vector)((Unsigned)large | sign);
}

void cap_scores(TileBlock block, float scale, float cap, float* slopes) {
  const float factor = scale / cap;
  for (std::int64_t v = block.first_vector; v < block.first_vector + block.vectors; ++v) {
    for (std::int64_t row = 0; row < block.rows; ++row) {
      float* const score = block.tile + row * kWidth + v * kLanes;
      const Vector t = hyperbolic_tangent_of(load(score) * factor);
      store(score, t * cap);
      if (slopes != nullptr) store(slopes + row * kWidth + v * kLanes, (1.0f - t * t) * scale);
    }
  }
}

// The words of philox() of shared/kernels/philox.h for the counters of one vector's queries.
struct Words {
  Unsigned of[4];
};
CP_INLINE Unsigned high_word(Unsigned a, std::uint32_t b) {
  return __builtin_convertvector((__builtin_convertvector(a, Wide) * std::uint64_t{b}) >> 32, Unsigned);
}
CP_INLINE Words philox_words(Words counter, std::uint64_t key) {
  constexpr std::uint32_t kFirst = 0xd2511f53, kSecond = 0xcd9e8d57;
  std::uint32_t first_key = (std::uint32_t)key, second_key = (std::uint32_t)(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const Unsigned first = counter.of[0], second = counter.of[2];
    counter = {{high_word(second, kSecond) ^ counter.of[1] ^ first_key, second * kSecond,
                high_word(first, kFirst) ^ counter.of[3] ^ second_key, first * kFirst}};
    first_key += 0x9e3779b9u, second_key += 0xbb67ae85u;
  }
  return counter;
}

void dropout(TileBlock block, const TileDropout& of) {
  for (std::int64_t v = block.first_vector; v < block.first_vector + block.vectors; ++v) {
    Unsigned queries, heads;
#pragma GCC unroll 16
    for (int lane = 0; lane < kLanes; ++lane)
      queries[lane] = of.queries[v * kLanes + lane], heads[lane] = of.heads[v * kLanes + lane];
    Words words{};
    std::uint32_t four = 0;  // the keys that the words are for are four * 4 to four * 4 + 3
    bool any = false;
    for (std::int64_t row = 0; row < block.rows; ++row) {
      const std::uint32_t key = of.keys[row];
      if (!any || key / 4 != four) {
        any = true, four = key / 4;
        words = philox_words({{four - Unsigned{}, queries, heads, of.layer - Unsigned{}}}, of.seed);
      }
      const Unsigned word = words.of[key % 4];
      store(block.tile + row * kWidth + v * kLanes, word < of.threshold ? Vector{} : fill(of.factor));
    }
  }
}

void multiply_by(TileBlock block, const float* factors) {
  for (std::int64_t v = block.first_vector; v < block.first_vector + block.vectors; ++v) {
    for (std::int64_t row = 0; row < block.rows; ++row) {
      float* const value = block.tile + row * kWidth + v * kLanes;
      store(value, load(value) * load(factors + row * kWidth + v * kLanes));
    }
  }
}

void scale_columns(TileBlock block, const float* factors, const float* factors_low) {
  for (std::int64_t v = block.first_vector; v < block.first_vector + block.vectors; ++v) {
    float* column = block.tile + v * kLanes;
    const Vector factor = load(factors + v * kLanes);
    const Vector low = factors_low == nullptr ? Vector{} : load(factors_low + v * kLanes);
    for (std::int64_t row = 0; row < block.rows; ++row) {
      const Vector value = load(column + row * kWidth), plain = value * factor, both = value * low + plain;
      store(column + row * kWidth, both == both ? both : plain);  // an infinity stays one
    }
  }
}

void add_to(float* sums, float* low, const float* terms, std::int64_t count) {
  for (std::int64_t i = 0; i < count; i += kLanes) add_exactly(sums + i, low + i, load(terms + i));
}

void round_sums(float* sums, const float* low, std::int64_t count) {
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const Vector sum = load(sums + i), total = sum + load(low + i);
    store(sums + i, total == total ? total : sum);
  }
}

void exponential(const float* in, float* out, std::int64_t count) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(out + i, exponential_of(load(in + i)));
  if (i == count) return;
  float rest[kLanes] = {};
  for (std::int64_t lane = 0; lane < count - i; ++lane) rest[lane] = in[i + lane];
  store(rest, exponential_of(load(rest)));
  for (std::int64_t lane = 0; lane < count - i; ++lane) out[i + lane] = rest[lane];
}

constexpr TileKernels table(std::string_view name) {
  TileKernels kernels;
  kernels.name = name;
  kernels.lanes = kLanes;
  kernels.vectors = kVectors;
  kernels.panel_rows = kPanelRows;
  kernels.multiply_panels = multiply_panels;
  kernels.multiply_tile = multiply_tile;
#if defined(__AVX512BF16__)
  kernels.multiply_pairs = multiply_pairs;
#endif
  kernels.scale_scores = scale_scores;
  kernels.exponentials = exponentials;
  kernels.gradients = gradients;
  kernels.cap_scores = cap_scores;
  kernels.dropout = dropout;
  kernels.multiply_by = multiply_by;
  kernels.scale_columns = scale_columns;
  kernels.add_to = add_to;
  kernels.round_sums = round_sums;
  kernels.exponential = exponential;
  return kernels;
}

}  // namespace
}  // namespace cp
