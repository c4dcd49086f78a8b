#include "shared/plan/fused_attention.h"

#include <algorithm>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/error.h"
#include "tests/support/any_case.h"

namespace cp {
namespace {

using Kind = MaskSlice::Kind;
using Mask = FusedShape::Mask;

MaskSlice slice(std::int64_t q_begin, std::int64_t q_len, std::int64_t k_begin, std::int64_t k_len, Kind kind,
                std::int64_t diagonal = 0, std::int64_t window = 0) {
  return {q_begin, q_len, k_begin, k_len, kind, diagonal, window};
}

FusedShape call(bool backward = false) {
  FusedShape shape;
  shape.backward = backward;
  shape.q_len = shape.k_len = 1024;
  shape.q_heads = 8;
  shape.kv_heads = 2;
  shape.head_dim = shape.v_head_dim = 128;
  shape.mask = Mask::causal;
  return shape;
}

TEST(FusedForm, OneSlice) {
  EXPECT_EQ(fused_form({slice(0, 4, 0, 6, Kind::full)}, 4, 6)->mask, Mask::full);
  EXPECT_EQ(fused_form({slice(0, 4, 0, 6, Kind::causal, 2)}, 4, 6)->mask, Mask::causal);
  EXPECT_EQ(fused_form({slice(0, 4, 0, 4, Kind::causal, 0)}, 4, 4)->mask, Mask::causal);
  EXPECT_EQ(fused_form({slice(0, 6, 0, 4, Kind::causal, 0)}, 6, 4)->mask, Mask::causal_top_left);
  const auto window = fused_form({slice(0, 4, 0, 6, Kind::window, 2, 3)}, 4, 6);
  EXPECT_EQ(window->mask, Mask::window);
  EXPECT_EQ(window->window, 3);
  EXPECT_TRUE(window->documents.empty());
}

TEST(FusedForm, TailsOfWindows) {
  // Four rows see keys from 0, 1, 2 and 3 on, up to the last.
  const auto tail = fused_form({slice(0, 4, 0, 6, Kind::window, 5, 6)}, 4, 6);
  ASSERT_TRUE(tail);
  EXPECT_EQ(tail->mask, Mask::window_tail);
  EXPECT_EQ(tail->window, 1);
  // The first three see all. That the upper diagonal lies farther away changes nothing.
  EXPECT_EQ(fused_form({slice(0, 4, 0, 6, Kind::window, 5, 8)}, 4, 6)->window, 3);
  EXPECT_EQ(fused_form({slice(0, 4, 0, 6, Kind::window, 50, 53)}, 4, 6)->window, 3);
  EXPECT_EQ(fused_form({slice(0, 4, 0, 6, Kind::window, 50, 60)}, 4, 6)->mask, Mask::full);
  EXPECT_FALSE(fused_form({slice(0, 4, 0, 6, Kind::window, 4, 5)}, 4, 6));  // the first row misses a key
  EXPECT_FALSE(fused_form({slice(0, 4, 0, 6, Kind::window, 5, 5)}, 4, 6));  // the first row begins at 1
  // Documents share the window; one that sees everything is in any that is long enough.
  const std::vector<MaskSlice> documents = {slice(0, 4, 0, 6, Kind::window, 5, 7),
                                            slice(4, 2, 6, 3, Kind::full),
                                            slice(6, 5, 9, 4, Kind::window, 3, 5)};
  EXPECT_EQ(fused_form(documents, 11, 13)->mask, Mask::window_tail);
  EXPECT_EQ(fused_form(documents, 11, 13)->window, 2);
  EXPECT_FALSE(fused_form({documents[0], slice(4, 3, 6, 3, Kind::full)}, 7, 9));
}

TEST(FusedForm, NoneForOtherDiagonalsGapsAndParts) {
  EXPECT_FALSE(fused_form({}, 4, 6));
  EXPECT_FALSE(fused_form({slice(0, 4, 0, 6, Kind::causal, 1)}, 4, 6));
  EXPECT_FALSE(fused_form({slice(0, 4, 0, 4, Kind::causal, -1)}, 4, 4));
  EXPECT_FALSE(fused_form({slice(0, 4, 0, 5, Kind::full)}, 4, 6));
  EXPECT_FALSE(fused_form({slice(1, 3, 0, 6, Kind::full)}, 4, 6));
  EXPECT_FALSE(fused_form({slice(0, 2, 0, 2, Kind::full), slice(2, 2, 3, 3, Kind::full)}, 4, 6));
  EXPECT_FALSE(fused_form({slice(0, 4, 0, 2, Kind::full), slice(0, 4, 2, 4, Kind::causal, 0)}, 4, 6));
  EXPECT_FALSE(fused_form({slice(0, 2, 0, 2, Kind::full), slice(2, 2, 2, 2, Kind::causal, 0)}, 4, 4));
}

TEST(FusedForm, DocumentsInAnyOrderWithTheirLengths) {
  const auto shape =
      fused_form({slice(3, 2, 3, 4, Kind::causal, 2), slice(0, 3, 0, 3, Kind::causal, 0)}, 5, 7);
  ASSERT_TRUE(shape);
  EXPECT_EQ(shape->mask, Mask::causal);
  EXPECT_EQ(shape->documents, (std::vector<FusedShape::Document>{{3, 3}, {2, 4}}));
  // One query that sees all of its document is causal, and in any window that is long enough.
  EXPECT_EQ(fused_form({slice(0, 3, 0, 3, Kind::causal, 0), slice(3, 1, 3, 2, Kind::full)}, 4, 5)->mask,
            Mask::causal);
  EXPECT_EQ(
      fused_form({slice(0, 9, 0, 9, Kind::window, 0, 4), slice(9, 2, 9, 2, Kind::causal, 0)}, 11, 11)->window,
      4);
}

// The form says the same about each pair of query and key as the slices do.
RC_GTEST_PROP(FusedForm, AllowsTheSlicesPairs, ()) {
  const auto count = pick("count", rc::gen::inRange(1, 4));
  std::vector<MaskSlice> slices;
  std::int64_t q_len = 0, k_len = 0;
  const std::int64_t window = pick("window", rc::gen::inRange<std::int64_t>(1, 6));
  for (int i = 0; i < count; ++i) {
    const auto q = pick("q", rc::gen::inRange<std::int64_t>(1, 6)),
               k = pick("k", rc::gen::inRange<std::int64_t>(1, 8));
    const auto kind = pick("kind", rc::gen::element(Kind::full, Kind::causal, Kind::window));
    const auto diagonal = pick("diagonal", rc::gen::element<std::int64_t>(0, k - q, k - 1, k + 1));
    slices.push_back(slice(q_len, q, k_len, k, kind, diagonal, kind == Kind::window ? window : 0));
    q_len += q;
    k_len += k;
  }
  const auto shape = fused_form(slices, q_len, k_len);
  RC_CLASSIFY(shape.has_value(), "has a form");
  if (!shape) return;
  std::vector<FusedShape::Document> parts = shape->documents;
  if (parts.empty()) parts = {{q_len, k_len}};
  RC_ASSERT(parts.size() == slices.size());
  for (std::size_t p = 0; p < parts.size(); ++p) {
    for (std::int64_t i = 0; i < parts[p].q_len; ++i) {
      const std::int64_t diagonal =
          i + (shape->mask == Mask::causal_top_left ? 0 : parts[p].k_len - parts[p].q_len);
      for (std::int64_t j = 0; j < parts[p].k_len; ++j) {
        const bool by_form =
            shape->mask == Mask::window_tail
                ? j > i - shape->window
                : shape->mask == Mask::full ||
                      (j <= diagonal && (shape->mask != Mask::window || j > diagonal - shape->window));
        RC_ASSERT(by_form == allows(slices[p], slices[p].q_begin + i, slices[p].k_begin + j));
      }
    }
  }
}

TEST(FusedAttention, RefusesWithTheValue) {
  const FusedAttention& h100 = cudnn_attention("sm90");
  const auto reason = [&](auto change, bool backward = false) {
    FusedShape shape = call(backward);
    change(shape);
    return refuse(h100, shape).value_or("taken");
  };
  EXPECT_EQ(reason([](FusedShape&) {}), "taken");
  EXPECT_EQ(reason([](FusedShape& s) { s.dtype = DType::f32; }), "dtype f32 is not one of bf16, f16");
  EXPECT_EQ(reason([](FusedShape& s) { s.head_dim = 100; }), "head_dim 100 is not a multiple of 8");
  EXPECT_EQ(reason([](FusedShape& s) { s.v_head_dim = 512; }),
            "v_head_dim 512 is above 256, the forward kernels' limit");
  EXPECT_EQ(reason([](FusedShape& s) { s.kv_heads = 3; }), "kv_heads 3 does not divide q_heads 8");
  EXPECT_EQ(reason([](FusedShape& s) { s.q_len = 2048; }),
            "with 2048 queries and 1024 keys under a causal mask, some rows see no key");
  EXPECT_EQ(reason([](FusedShape& s) { s.q_len = 2048, s.mask = Mask::causal_top_left; }), "taken");
  const auto tail = [&](std::int64_t q_len, std::int64_t window) {
    return reason([&](FusedShape& s) { s.q_len = q_len, s.mask = Mask::window_tail, s.window = window; });
  };
  EXPECT_EQ(tail(1024, 1), "taken");
  EXPECT_EQ(tail(1024, 0), "window 0 sees no key");
  EXPECT_EQ(tail(1500, 476),
            "with 1500 queries and 1024 keys under a window tail mask, some rows see no key");
  EXPECT_EQ(
      tail(1500, 477),
      "under a window tail, 1500 queries are more than 1024 keys; give those that see every key a call of "
      "their own");
  FusedAttention old = h100;
  old.window_tail = false;
  FusedShape of_old = call();
  of_old.mask = Mask::window_tail, of_old.window = 1;
  EXPECT_EQ(refuse(old, of_old), "no kernel supports a window whose last keys are in another call");
  EXPECT_EQ(reason([](FusedShape& s) {
              s.batch = 2, s.documents = {{1024, 1024}};
            }),
            "several documents need batch 1, not 2");
  EXPECT_EQ(reason([](FusedShape& s) {
              s.documents = {{1000, 1000}};
            }),
            "documents have 1000 queries and 1000 keys, but the call has 1024 and 1024");
  EXPECT_EQ(reason([](FusedShape& s) { s.q_len = s.k_len = 1; }, true),
            "no backward kernel supports one query and one key");
  EXPECT_EQ(
      reason(
          [](FusedShape& s) {
            s.head_dim = 72, s.documents = {{1024, 1024}};
          },
          true),
      "the backward kernels of several documents need multiples of 16, not head_dim 72 and v_head_dim 128");
  FusedShape packed = call();
  packed.documents = {{1000, 1000}, {24, 24}};
  EXPECT_EQ(refuse(h100, packed), std::nullopt);
  FusedShape queries = call();
  queries.q_len = 2, queries.mask = FusedShape::Mask::full, queries.documents = {{1, 1000}, {1, 24}};
  EXPECT_EQ(refuse(h100, queries),
            "of 2 documents of one query each cuDNN writes a wrong log-sum-exp; make a call for each");
  queries.q_len = 3, queries.documents = {{1, 1000}, {2, 24}};
  EXPECT_EQ(refuse(h100, queries), std::nullopt);
  EXPECT_EQ(refuse(cudnn_attention("sm80"), packed), "no kernel supports several documents");
  EXPECT_THROW(cudnn_attention("sm70"), InvalidInput);
}

TEST(FusedAttention, RefusesOperandsByTheirStrides) {
  FusedShape shape = call();
  const View bshd = dense_view(0, 0, {1, 1024, 8, 128});
  View bnsd = bshd;
  bnsd.strides = {1024 * 8 * 128, 128, 1024 * 128, 1};
  EXPECT_FALSE(refuse_operand(shape, bshd, false));
  EXPECT_FALSE(refuse_operand(shape, bnsd, true));
  View moved = bshd;
  moved.offset = 4;
  EXPECT_TRUE(refuse_operand(shape, moved, false));
  View odd = bshd;
  odd.strides = {1024 * 8 * 129, 8 * 129, 129, 1};
  EXPECT_TRUE(refuse_operand(shape, odd, false));
  View repeated = bshd;
  repeated.strides[2] = 0;
  EXPECT_TRUE(refuse_operand(shape, repeated, false));

  shape.documents = {{1000, 1000}, {24, 24}};
  View interleaved = bshd;  // k of a packed qkv
  interleaved.strides = {1024 * 3 * 8 * 128, 3 * 8 * 128, 128, 1};
  EXPECT_FALSE(refuse_operand(shape, interleaved, false));
  EXPECT_TRUE(refuse_operand(shape, interleaved, true));
  shape.backward = true;
  EXPECT_TRUE(refuse_operand(shape, interleaved, false));
  EXPECT_FALSE(refuse_operand(shape, bshd, false));
  EXPECT_FALSE(refuse_operand(shape, bshd, true));
  EXPECT_TRUE(refuse_operand(shape, bnsd, false));
}

// Sizes that cuDNN 9.19 asked for (tests/cudnn/support_test.cc asks it again): the bound is above each, by
// little where it is large.
TEST(FusedAttention, RefusesAnLseThatIsScatteredOrOutOfLine) {
  FusedShape shape = call();
  const View lse = dense_view(0, 8, {1, 2, 6});
  const auto refused = [&](auto change) {
    View view = lse;
    change(view);
    return refuse_lse(shape, view).has_value();
  };
  const auto moved = [](View& view) { view.offset += 2; };
  const auto advancing = [](View& view) { view.advance.stride = 6; };
  EXPECT_FALSE(refuse_lse(shape, lse));
  EXPECT_TRUE(refused(moved));
  EXPECT_TRUE(refused(advancing));
  EXPECT_TRUE(refused([](View& view) { view.strides[1] = 8; }));
  shape.documents = {{512, 512}, {512, 512}};  // goes through the workspace
  EXPECT_FALSE(refused(moved));
  EXPECT_FALSE(refused(advancing));
  EXPECT_TRUE(refused([](View& view) { view.strides[1] = 8; }));
}

TEST(FusedAttention, WorkspaceBoundsWhatTheLibraryAsksFor) {
  struct Seen {
    const char* gpu;
    FusedShape shape;
    std::int64_t bytes;
  };
  FusedShape gqa = call(true), mha = call(true), packed = call(true), decode = call();
  mha.q_len = mha.k_len = 1001, mha.kv_heads = 8, mha.mask = Mask::full;
  packed.q_len = packed.k_len = 65536, packed.q_heads = 64, packed.kv_heads = 8;
  packed.documents = {4, {16384, 16384}};
  decode.q_len = 1, decode.k_len = 1048576, decode.q_heads = 100, decode.kv_heads = 25,
  decode.mask = Mask::full;
  for (const Seen& seen :
       {Seen{"sm90", gqa, 8421632}, Seen{"sm80", gqa, 12615808}, Seen{"sm100", gqa, 8421504},
        Seen{"sm120", gqa, 12615808}, Seen{"sm90", mha, 4132384}, Seen{"sm80", mha, 8261024},
        Seen{"sm90", packed, 6459231104}, Seen{"sm90", decode, 416128}}) {
    const std::int64_t bound = workspace_bytes(cudnn_attention(seen.gpu), seen.shape);
    EXPECT_GE(bound, seen.bytes) << seen.gpu << ' ' << to_text(seen.shape);
    EXPECT_EQ(bound % 256, 0);
    if (seen.shape.backward) {
      const std::int64_t lse = seen.shape.documents.empty() ? 0 : seen.shape.q_len * seen.shape.q_heads * 4;
      EXPECT_LE(bound - lse, seen.bytes + 70'000) << seen.gpu << ' ' << to_text(seen.shape);
    }
  }
}

}  // namespace
}  // namespace cp
