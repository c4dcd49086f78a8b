// What kernels do, counted, and what that takes.
#include "sim/cost/timeline/kernel_cost.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/plan/builder.h"
#include "shared/transformer/step_writer.h"
#include "sim/cost/cluster/read_cluster.h"
#include "sim/cost/cluster/read_software.h"
#include "sim/cost/presets/csv.h"
#include "tests/cost/timeline_cluster.h"
#include "tests/support/any_case.h"

namespace cp::sim {
namespace {

using testing::round_cluster;

// Attention of [1, q_len, heads, d] and [1, k_len, heads, d], bf16; the plan holds its buffers.
struct AttentionTensors {
  AttentionTensors(std::int64_t q_len, std::int64_t k_len, std::int64_t heads, std::int64_t d,
                   std::vector<MaskSlice> slices)
      : builder(0, host_target()) {
    const auto view = [&](const char* name, std::int64_t rows) {
      return dense_view(builder.input(name, DType::bf16, rows * heads * d), 0, {1, rows, heads, d});
    };
    forward.q = view("q", q_len), forward.k = view("k", k_len), forward.v = view("v", k_len);
    forward.out = dense_view(builder.output("out", DType::bf16, q_len * heads * d), 0, {1, q_len, heads, d});
    forward.lse = dense_view(builder.output("lse", DType::f32, q_len * heads), 0, {1, heads, q_len});
    forward.slices = std::move(slices);
    builder.add(builder.stream("s"), forward);
    plan = std::move(builder).build({});
  }
  PlanBuilder builder;
  AttentionForward forward;
  Plan plan;
};

RC_GTEST_PROP(KernelWork, PairsAreThoseThatTheSliceAllows, ()) {
  MaskSlice slice;
  slice.q_len = pick("slice.q_len", rc::gen::inRange(0, 12)),
  slice.k_len = pick("slice.k_len", rc::gen::inRange(0, 12));
  slice.kind = pick("slice.kind", rc::gen::element(MaskSlice::Kind::full, MaskSlice::Kind::causal,
                                                   MaskSlice::Kind::window));
  slice.diagonal = pick("slice.diagonal", rc::gen::inRange(-14, 15));
  slice.window = pick("slice.window", rc::gen::inRange(1, 20));
  std::int64_t allowed = 0;
  for (std::int64_t q = 0; q < slice.q_len; ++q) {
    for (std::int64_t k = 0; k < slice.k_len; ++k) allowed += allows(slice, q, k) ? 1 : 0;
  }
  const AttentionTensors attention(12, 12, 3, 5, {slice});
  const KernelWork work = work_of(attention.forward, attention.plan);
  const bool full = slice.kind == MaskSlice::Kind::full;
  RC_ASSERT((full ? work.full_pairs : work.diagonal_pairs) == 3.0 * static_cast<double>(allowed));
  RC_ASSERT(work.flops == 3.0 * 4 * 5 * static_cast<double>(allowed));
}

TEST(KernelCost, AFusedCallIsAttentionOfItsPairsWhateverItsWorkspace) {
  AttentionTensors attention(12, 12, 3, 5, {{0, 12, 0, 12, MaskSlice::Kind::causal, 0, 0}});
  const KernelWork exact = work_of(attention.forward, attention.plan);
  attention.plan.buffers.push_back({"workspace", BufferKind::temporary, DType::f32, 1 << 20});
  attention.forward.engine = AttentionEngine::fused;
  attention.forward.workspace =
      flat_view(static_cast<BufferId>(attention.plan.buffers.size()) - 1, 0, 1 << 20);
  const KernelWork fused = work_of(attention.forward, attention.plan);
  EXPECT_EQ(fused.bytes, exact.bytes);
  EXPECT_EQ(fused.flops, exact.flops);
}

// Where nobody measured them, products in 8 bits reach four fifths of the share of their peak that those in
// 16 bits reach.
TEST(KernelCost, Fp8ProductsWithoutARateReachLessOfTheirPeak) {
  Cluster cluster = round_cluster();
  cluster.gpu.tflops_fp8 = 2 * cluster.gpu.tflops_16;
  const KernelWork work = product_work(4096, 4096, 4096);
  SoftwareProfile software;
  const double in_16 = KernelCost(cluster, software).product_ns(work, DType::bf16);
  software.linear_precision = LinearPrecision::fp8;
  EXPECT_DOUBLE_EQ(KernelCost(cluster, software).product_ns(work, DType::bf16), in_16 / 2 / 0.8);
  cluster.fp8_efficiency = Curve({{1, 1}});  // what was measured counts
  EXPECT_DOUBLE_EQ(KernelCost(cluster, software).product_ns(work, DType::bf16), in_16 / 2);
}

// The scores and their gradients, and a product for each gradient that is there.
TEST(KernelWork, GradientsThatNobodyWantsCostNothing) {
  const AttentionTensors attention(12, 12, 3, 5, {{0, 12, 0, 12, MaskSlice::Kind::full, 0, 0}});
  const AttentionForward& f = attention.forward;
  const auto flops = [&](bool dq, bool dk, bool dv) {
    AttentionBackward backward;
    backward.q = f.q, backward.k = f.k, backward.v = f.v, backward.dout = f.out, backward.lse = f.lse;
    backward.slices = f.slices;
    if (dq) backward.dq = f.q;
    if (dk) backward.dk = f.k;
    if (dv) backward.dv = f.v;
    return work_of(backward, attention.plan).flops;
  };
  const double forward = work_of(f, attention.plan).flops;  // two products
  EXPECT_EQ(flops(true, true, true), 2.5 * forward);
  EXPECT_EQ(flops(true, false, false), 1.5 * forward);
  EXPECT_EQ(flops(false, true, true), 2 * forward);
}

TEST(KernelCost, BytesAreReadsAndWrites) {
  PlanBuilder builder(0, host_target());
  const BufferId a = builder.input("a", DType::bf16, 100), b = builder.inout("b", DType::f32, 100);
  const Kernel cast = Cast{flat_view(a, 0, 100), flat_view(b, 0, 100)};
  const Kernel add = Accumulate{ReduceOp::sum, flat_view(b, 0, 50), flat_view(b, 50, 50)};
  builder.add(builder.stream("s"), cast);
  builder.add(builder.stream("s"), add);
  const Plan plan = std::move(builder).build({});
  EXPECT_EQ(work_of(cast, plan).bytes, 200 + 400);
  EXPECT_EQ(work_of(add, plan).bytes, 3 * 200);
  const Cluster cluster = round_cluster();
  const SoftwareProfile software;
  EXPECT_NEAR(KernelCost(cluster, software).ns(cast, plan), 0.6, 1e-12);
}

TEST(KernelCost, RowKernelsMoveTheirBytes) {
  PlanBuilder builder(0, shape_target());
  const BufferId a = builder.input("a", DType::bf16, 100), b = builder.inout("b", DType::f32, 100);
  const Kernel adam = RowKernel{
      RowOperation::gated_norm, {flat_view(a, 0, 100)}, {flat_view(b, 0, 50)}, {flat_view(b, 50, 50)}};
  builder.add(builder.stream("s"), adam);
  const Plan plan = std::move(builder).build({});
  EXPECT_EQ(work_of(adam, plan).bytes, 200 + 200 + 2 * 200);
  EXPECT_EQ(work_of(adam, plan).flops, 0);
  const Cluster cluster = round_cluster();
  const SoftwareProfile software;
  EXPECT_NEAR(KernelCost(cluster, software).ns(adam, plan), 0.8, 1e-12);
}

// Of a table, the rows that are looked up, and no more than there are.
TEST(KernelCost, LookUpsReadTheRowsTheyNeed) {
  PlanBuilder builder(0, shape_target());
  const BufferId tokens = builder.input("tokens", DType::i32, 30),
                 table = builder.input("table", DType::bf16, 80), x = builder.output("x", DType::bf16, 120);
  const auto embed = [&](std::int64_t rows) {
    VocabularyRule rule;
    rule.count = 20;
    return Kernel(RowKernel{RowOperation::embed,
                            {flat_view(tokens, 0, rows), dense_view(table, 0, {20, 4})},
                            {dense_view(x, 0, {rows, 4})},
                            {},
                            rule});
  };
  for (const std::int64_t rows : {3, 30}) builder.add(builder.stream("s"), embed(rows));
  const Plan plan = std::move(builder).build({});
  EXPECT_DOUBLE_EQ(work_of(embed(3), plan).bytes, 3 * 4 + 2 * 3 * 4 * 2);
  EXPECT_DOUBLE_EQ(work_of(embed(30), plan).bytes, 30 * 4 + 20 * 4 * 2 + 30 * 4 * 2);
}

// Rows of the table that the preset's curve is made of come back.
TEST(KernelCost, ACalibratedClusterGivesItsTableBack) {
  const Cluster cluster = find_cluster("a800", 1);
  const SoftwareProfile software;
  const KernelCost cost(cluster, software);
  for (const CsvRow& row : validation_table("flash_attention_a800_h800")) {
    if (row.text("gpu") != "A800") continue;
    const auto seq_len = static_cast<std::int64_t>(row.number("seq_len"));
    MaskSlice slice{0, seq_len, 0, seq_len, MaskSlice::Kind::full, 0, 0};
    if (row.text("mask") == "causal") slice.kind = MaskSlice::Kind::causal;
    const AttentionTensors attention(seq_len, seq_len, 32, 128, {slice});
    const double launch_ns = cluster.gpu.kernel_launch_us * 1e3;
    EXPECT_NEAR(cost.ns(attention.forward, attention.plan) - launch_ns,
                row.number("forward_milliseconds") * 1e6, 1e-4 * row.number("forward_milliseconds") * 1e6)
        << row.where();
  }
}

// One query of many heads against a long cache: reading the keys and values is all that takes time.
TEST(KernelCost, DecodingReadsItsCache) {
  const Cluster cluster = find_cluster("h800");
  const SoftwareProfile software;
  const std::int64_t keys = 1 << 20;
  MaskSlice all;
  all.q_len = 1, all.k_len = keys;
  const AttentionTensors decoding(1, keys, 1, 128, {all});
  const double bytes = work_of(decoding.forward, decoding.plan).bytes;
  const KernelCost cost(cluster, software);
  EXPECT_NEAR(cost.ns(decoding.forward, decoding.plan),
              cost.memory_ns(bytes) + cluster.gpu.kernel_launch_us * 1e3, 1);
}

// 128 sequences of 512 latent rows and 32 heads: the values are in the rows, which are read once, and the
// time is that of the cluster's rate of such kernels.
TEST(KernelCost, DecodingReadsLatentRowsOnce) {
  constexpr std::int64_t kSequences = 128, kKeys = 512, kHeads = 32, kRow = 576, kRank = 512;
  PlanBuilder builder(0, host_target());
  AttentionForward attention;
  const BufferId rows = builder.input("latent", DType::bf16, kSequences * kKeys * kRow);
  attention.q = dense_view(builder.input("q", DType::bf16, kSequences * kHeads * kRow), 0,
                           {kSequences, 1, kHeads, kRow});
  attention.k = dense_view(rows, 0, {kSequences, kKeys, 1, kRow});
  attention.v = attention.k, attention.v.shape[3] = kRank;
  attention.out = dense_view(builder.output("out", DType::bf16, kSequences * kHeads * kRank), 0,
                             {kSequences, 1, kHeads, kRank});
  attention.lse =
      dense_view(builder.output("lse", DType::f32, kSequences * kHeads), 0, {kSequences, kHeads, 1});
  MaskSlice slice;
  slice.q_len = 1, slice.k_len = kKeys, slice.kind = MaskSlice::Kind::full;
  attention.slices = {slice};
  builder.add(builder.stream("s"), attention);
  const Plan plan = std::move(builder).build({});
  const KernelWork work = work_of(attention, plan);
  EXPECT_TRUE(work.values_in_keys);
  EXPECT_EQ(work.bytes,
            2.0 * kSequences * (kKeys * kRow + kHeads * (kRow + kRank)) + 4.0 * kSequences * kHeads);
  EXPECT_EQ(work.bytes_per_key, 2.0 * kSequences * kRow);
  EXPECT_EQ(work.flops, 2.0 * kSequences * kHeads * kKeys * (kRow + kRank));
  const Cluster cluster = find_cluster("dgx-h100", 1);
  const auto rate = std::find_if(cluster.rates.latent.begin(), cluster.rates.latent.end(),
                                 [](const LatentRate& each) { return each.decode && each.cache_bits == 16; });
  ASSERT_NE(rate, cluster.rates.latent.end());
  const double speed = cluster.gpu.sustained_clock * cluster.gpu.tflops_16 / cluster.rates.tflops_16;
  const double us =
      latent_us(*rate, {kSequences, kHeads, 1, kKeys}, cluster.rates.sms, cluster.gpu.hbm_gbps, speed);
  const SoftwareProfile software = find_software("cprun");
  const KernelCost cost(cluster, software);
  EXPECT_NEAR(cost.ns(Kernel(attention), plan), 1e3 * us, 1e-6 * us);
  // As keys and values of their own they would be 1,088 elements, and of other kernels.
  AttentionForward other = attention;
  other.v.offset = kRow - kRank + 1;  // beyond the row's end
  EXPECT_FALSE(work_of(other, plan).values_in_keys);
  EXPECT_EQ(work_of(other, plan).bytes, work.bytes + 2.0 * kSequences * kKeys * kRank);
}

TEST(KernelCost, NoKernelExceedsItsPeak) {
  Cluster cluster = round_cluster();
  for (AttentionCurve& curve : cluster.attention) curve.tflops = Curve({{1, 100}});  // of a GPU that has 1
  cluster.gpu.hbm_gbps = 1e9;
  const SoftwareProfile software;
  const AttentionTensors attention(64, 64, 1, 64, {{0, 64, 0, 64, MaskSlice::Kind::full, 0, 0}});
  EXPECT_NEAR(KernelCost(cluster, software).ns(attention.forward, attention.plan), 64 * 64 * 4 * 64 * 1e-3,
              1e-6);
}

// ---- what a framework does beyond one fused kernel ----

double without_launch(const Cluster& cluster, const SoftwareProfile& software, const Kernel& kernel,
                      const Plan& plan) {
  return KernelCost(cluster, software).ns(kernel, plan) - cluster.gpu.kernel_launch_us * 1e3;
}

TEST(KernelCost, RowKernelsMoveTheirBytesAsOftenAsTheSoftwareSays) {
  Cluster cluster = round_cluster();
  cluster.memory_efficiency = {};  // as fast whatever the bytes
  PlanBuilder builder(0, shape_target());
  const View x = flat_view(builder.input("x", DType::bf16, 1 << 20), 0, 1 << 20),
             y = flat_view(builder.output("y", DType::bf16, 1 << 20), 0, 1 << 20);
  builder.add(builder.stream("s"), RowKernel{RowOperation::rotary, {x}, {y}, {}});
  const Plan plan = std::move(builder).build({});
  SoftwareProfile fused, separate;
  separate.rotary_passes = 5, separate.loss_passes = 6, separate.optimizer_passes = 3;
  const auto ratio = [&](RowOperation operation) {
    const RowKernel kernel{operation, {x}, {y}, {}};
    return without_launch(cluster, separate, kernel, plan) / without_launch(cluster, fused, kernel, plan);
  };
  EXPECT_DOUBLE_EQ(ratio(RowOperation::rotary), 5);
  EXPECT_DOUBLE_EQ(ratio(RowOperation::rotary_backward), 5);
  EXPECT_DOUBLE_EQ(ratio(RowOperation::cross_entropy), 6);
  EXPECT_DOUBLE_EQ(ratio(RowOperation::cross_entropy_backward), 6);
  EXPECT_DOUBLE_EQ(ratio(RowOperation::optimizer), 3);
  EXPECT_DOUBLE_EQ(ratio(RowOperation::rms_norm), 1);
}

// Products forward, for the input and for the weight, of a table of this name.
std::vector<double> products_of(const std::string& table, const std::string& gradients,
                                const SoftwareProfile& software) {
  constexpr std::int64_t kTokens = 4096, kHidden = 2048, kColumns = 8192;
  const Cluster cluster = find_cluster("dgx-h100", 1);
  PlanBuilder builder(0, host_target());
  const auto matrix = [&](BufferId buffer, std::int64_t rows, std::int64_t columns) {
    return dense_view(buffer, 0, {rows, columns});
  };
  const View x = matrix(builder.input("working/x", DType::bf16, kTokens * kHidden), kTokens, kHidden),
             w = matrix(builder.input(table, DType::bf16, kColumns * kHidden), kColumns, kHidden),
             y = matrix(builder.output("working/y", DType::bf16, kTokens * kColumns), kTokens, kColumns),
             dx = matrix(builder.output("working/dx", DType::bf16, kTokens * kHidden), kTokens, kHidden),
             dw = matrix(builder.output(gradients, DType::bf16, kColumns * kHidden), kColumns, kHidden);
  const std::vector<MatMul> all = {{x, transposed(w), y}, {y, w, dx}, {transposed(y), x, dw}};
  const StreamId stream = builder.stream("s");
  for (const MatMul& product : all) builder.add(stream, product);
  const Plan plan = std::move(builder).build({});
  std::vector<double> ns;
  for (const MatMul& product : all) ns.push_back(without_launch(cluster, software, product, plan));
  return ns;
}

TEST(KernelCost, TheHeadIsIn16BitsWhereTheSoftwareLeavesItThere) {
  SoftwareProfile b16, fp8, fp8_but_head;
  fp8.linear_precision = fp8_but_head.linear_precision = LinearPrecision::fp8;
  fp8_but_head.fp8_head = false;
  const char* layers = "unsharded/layers";
  EXPECT_EQ(products_of(layers, "unsharded/layers gradients", fp8_but_head),
            products_of(layers, "unsharded/layers gradients", fp8));
  for (const auto& [table, gradients] :
       {std::pair("unsharded/head", "unsharded/head gradients"),
        std::pair("parameters/head", "gradients/head"),
        std::pair("parameters/embedding", "unsharded/embedding gradients")}) {
    EXPECT_EQ(products_of(table, gradients, fp8_but_head), products_of(table, gradients, b16)) << table;
    EXPECT_EQ(products_of(table, gradients, fp8), products_of(layers, gradients, fp8)) << table;
  }
  EXPECT_LT(products_of(layers, "g", fp8)[0], products_of(layers, "g", b16)[0]);
}

TEST(KernelCost, ACastOfTheRightOperandReads16BitsAndWrites8) {
  SoftwareProfile kept, cast;
  kept.linear_precision = cast.linear_precision = LinearPrecision::fp8;
  cast.fp8_casts_both = true;
  const std::vector<double> before = products_of("w", "g", kept), after = products_of("w", "g", cast);
  const Cluster cluster = find_cluster("dgx-h100", 1);
  const KernelCost cost(cluster, cast);
  EXPECT_DOUBLE_EQ(after[0] - before[0], cost.memory_ns(3.0 * 2048 * 8192));
  EXPECT_DOUBLE_EQ(after[1] - before[1], cost.memory_ns(3.0 * 8192 * 2048));
  EXPECT_DOUBLE_EQ(after[2] - before[2], cost.memory_ns(3.0 * 4096 * 2048));
  cast.linear_precision = LinearPrecision::b16;
  SoftwareProfile b16;
  EXPECT_EQ(products_of("w", "g", cast), products_of("w", "g", b16));
}

}  // namespace
}  // namespace cp::sim
