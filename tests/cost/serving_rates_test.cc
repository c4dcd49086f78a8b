// Rates of software that serves: by hand, from their text, and where the timeline takes them.
#include "sim/cost/cluster/serving_rates.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "shared/plan/builder.h"
#include "sim/cost/cluster/read_cluster.h"
#include "sim/cost/cluster/read_rates.h"
#include "sim/cost/cluster/read_software.h"
#include "sim/cost/cluster/sourced_text.h"
#include "sim/cost/timeline/collective_cost.h"
#include "sim/cost/timeline/kernel_cost.h"
#include "sim/cost/timeline/rate_doubt.h"
#include "sim/cost/timeline/widths.h"
#include "tests/cost/timeline_cluster.h"

namespace cp::sim {
namespace {

using testing::first_ranks;
using ::testing::HasSubstr;

StoredProductRate round_product_rate() {
  StoredProductRate rate;
  rate.bits = 8, rate.floor_us = 3, rate.tflops = 100, rate.us_per_k = 0.5, rate.memory_share = 0.5,
  rate.provenance.source = "x";
  return rate;
}

TEST(StoredProductRate, AddsWhatMemoryWorkAndATileTake) {
  StoredProductRate rate = round_product_rate();
  // 1000 GB/s, half of it: 5e5 bytes a us. Operands have one byte, the result two.
  const double memory = (100 * 2000.0 + 3000 * 2000.0 + 100 * 3000 * 2.0) / 5e5,
               work = 2 * 100.0 * 3000 * 2000 / 1e8, tile = 1000;
  EXPECT_NEAR(stored_product_us(rate, 100, 3000, 2000, 1000, 1), 3 + memory + work + tile, 1e-9);
  EXPECT_NEAR(stored_product_us(rate, 100, 3000, 2000, 1000, 2), 3 + memory + work / 2 + tile, 1e-9);
  rate.blend = 2;
  EXPECT_NEAR(stored_product_us(rate, 100, 3000, 2000, 1000, 1),
              3 + std::sqrt(memory * memory + work * work + tile * tile), 1e-9);
  EXPECT_EQ(stored_product_us(rate, 0, 0, 0, 1000, 1), 3);
}

TEST(StoredProductRate, FewRowsHaveTheirOwn) {
  std::vector<StoredProductRate> rates = {round_product_rate(), round_product_rate()};
  rates[1].few_rows = true;
  EXPECT_EQ(find_stored_product(rates, 8, 257), &rates[0]);
  EXPECT_EQ(find_stored_product(rates, 8, 256), &rates[1]);
  EXPECT_EQ(find_stored_product(rates, 4, 1), nullptr);
  rates.pop_back();
  EXPECT_EQ(find_stored_product(rates, 8, 1), &rates[0]) << "the other one is nearer than none";
}

TEST(AllReduceRate, LiesBetweenItsPoints) {
  const AllReduceRate rate{"mine", 8, {1000, 2000, 4000}, {5, 6, 10}, {Origin::measured, "x"}};
  EXPECT_EQ(all_reduce_us(rate, 1), 5);
  EXPECT_EQ(all_reduce_us(rate, 1000), 5);
  EXPECT_EQ(all_reduce_us(rate, 3000), 8);
  EXPECT_EQ(all_reduce_us(rate, 4000), 10);
  EXPECT_EQ(all_reduce_us(rate, 8000), 20);
}

std::string rates_error(const std::string& line) {
  try {
    read_rates("gpu: \"mine\"\ntflops_16: 100\nhbm_gbps: 1000\nsms: 10\n" + line, "a.txtpb");
  } catch (const InvalidInput& error) {
    return error.what();
  }
  return "no error";
}

TEST(ServingRatesText, IsReadAndWritten) {
  const Rates rates = read_rates(
      "tflops_16: 1\nhbm_gbps: 1\nsms: 1\n"
      "decode { kernel: \"a\" head_dim: 64 floor_us: 1 memory_share: 1 origin: measured source: \"x\" "
      "cache_bits: 8 }\n"
      "stored_product { bits: 4 few_rows: true floor_us: 3 tflops: 4 us_per_k: 0.1 memory_share: 0.5 origin: "
      "measured source: "
      "\"x\" }\n"
      "all_reduce { kernel: \"a\" gpus: 2 bytes: [1, 2] us: [3, 4] origin: measured source: \"x\" }\n",
      "a.txtpb");
  EXPECT_EQ(rates.decode.at(0).cache_bits, 8);
  EXPECT_EQ(rates.stored_product.at(0).blend, 1) << "what is unset adds up";
  EXPECT_EQ(rates.all_reduce.at(0).us, (std::vector<double>{3, 4}));
  EXPECT_EQ(rates_of(message_of(rates)), rates);
}

TEST(ServingRatesText, ErrorsHaveTheirPlaceAndWhatIsAllowed) {
  const std::string product = "floor_us: 3 tflops: 4 memory_share: 0.5 origin: measured source: \"x\" }",
                    reduce = "all_reduce { kernel: \"a\" gpus: 2 origin: measured source: \"x\" ";
  const struct {
    std::string line, error;
  } cases[] = {
      {"stored_product { bits: 5 " + product,
       "a.txtpb:5:18: stored_product[0].bits: 5 is none of 16, 8 and 4"},
      {"stored_product { bits: 8 floor_us: 3 tflops: 0 memory_share: 1 origin: measured source: \"x\" }",
       "stored_product[0].tflops: 0 is not in [1e-06, 1e+06]"},
      {"stored_product { bits: 8 floor_us: 3 tflops: 1 memory_share: 1 }",
       "stored_product[0]: has neither origin nor source; add, for example, origin: "},
      {"stored_product { bits: 8 " + product + "\nstored_product { bits: 8 " + product,
       "a.txtpb:6:1: stored_product[1]: is a second rate of 8 bits and many rows; keep one"},
      {"all_reduce { kernel: \"a\" gpus: 2 bytes: 1 us: 1 source: \"x\" }",
       "a.txtpb:5:1: all_reduce[0]: has no origin; add origin: and one of measured, "},
      {"all_reduce { gpus: 2 bytes: 1 us: 1 origin: measured source: \"x\" }",
       "all_reduce[0]: has no kernel; add, for example, kernel: \"trtllm\""},
      {"all_reduce { kernel: \"a\" gpus: 1 bytes: 1 us: 1 origin: measured source: \"x\" }",
       "all_reduce[0]: gpus 1: one GPU reduces nothing; use 2 or more"},
      {reduce + "bytes: [1, 2] us: 3 }",
       "has 1 times but 2 sizes; give one time for each size, and at least one"},
      {reduce + "}", "has 0 times but 0 sizes"},
      {reduce + "bytes: [2, 1] us: [3, 4] }", "1 comes behind 2; give the sizes in ascending order"},
      {reduce + "bytes: [1, 2] us: [4, 3] }",
       "3 us for 2 bytes is less than the 4 us of 1, and time does not fall as bytes grow; leave one of the "
       "two out"},
      {reduce + "bytes: [1, 2] us: [0, 3] }", "a.txtpb:5:1: all_reduce[0]: us: 0 is not in [0.001, 1e+09]"},
      {reduce + "bytes: 1 us: 1 }\n" + reduce + "bytes: 1 us: 1 }",
       "all_reduce[1]: is a second rate of a on 2 GPUs; keep one"},
      {"decode { kernel: \"a\" head_dim: 64 floor_us: 1 memory_share: 1 origin: measured source: \"x\" "
       "cache_bits: 4 }",
       "decode[0].cache_bits: 4 is neither 16 nor 8"},
  };
  for (const auto& each : cases) EXPECT_THAT(rates_error(each.line), HasSubstr(each.error)) << each.line;
}

// ---- on the timeline ----

SoftwareProfile serving(LinearPrecision precision) {
  SoftwareProfile software = find_software("trtllm");
  software.linear_precision = precision;
  return software;
}

double product_us(const char* cluster, const SoftwareProfile& software, double m, double n, double k) {
  const Cluster of = find_cluster(cluster);
  return KernelCost(of, software).product_ns(product_work(m, n, k), DType::bf16) / 1e3 +
         of.gpu.kernel_launch_us;
}

// TensorRT-LLM on an H200: 8 x 51200 x 8192 in fp8 takes 119.7 us, of which finding scales takes 7.3 and
// casting 1.4; in 16 bits 212.5.
TEST(ServingCost, StoredOperandsAreReadInTheirBits) {
  EXPECT_NEAR(product_us("hgx-h200", serving(LinearPrecision::fp8), 8, 51200, 8192), 111, 0.06 * 111);
  EXPECT_NEAR(product_us("hgx-h200", serving(LinearPrecision::b16), 8, 51200, 8192), 212.5, 0.06 * 212.5);
  // SGLang on a B200: 4096 x 8192 x 8192 in nvfp4 takes 128.7 us.
  EXPECT_NEAR(product_us("hgx-b200", serving(LinearPrecision::nvfp4), 4096, 8192, 8192), 128.7, 0.15 * 128.7);
}

TEST(ServingCost, OtherSoftwareCastsItsOperands) {
  SoftwareProfile casting = serving(LinearPrecision::fp8);
  casting.stored_products = false;
  EXPECT_GT(product_us("hgx-h200", casting, 8, 2560, 1024),
            product_us("hgx-h200", serving(LinearPrecision::fp8), 8, 2560, 1024) + 7);
}

// One query row of `heads` heads against `keys` keys.
double decode_us(const Cluster& cluster, const SoftwareProfile& software, std::int64_t batch,
                 std::int64_t keys) {
  const std::int64_t heads = 8, d = 128;
  PlanBuilder builder(0, host_target());
  const auto view = [&](const char* name, std::int64_t rows, std::int64_t of_heads) {
    return dense_view(builder.input(name, DType::bf16, batch * rows * of_heads * d), 0,
                      {batch, rows, of_heads, d});
  };
  AttentionForward op;
  op.q = view("q", 1, heads), op.k = view("k", keys, 1), op.v = view("v", keys, 1);
  op.out = dense_view(builder.output("out", DType::bf16, op.q.numel()), 0, {batch, 1, heads, d});
  op.lse = dense_view(builder.output("lse", DType::f32, batch * heads), 0, {batch, heads, 1});
  MaskSlice slice;
  slice.q_len = 1, slice.k_len = keys;
  op.slices = {slice};
  builder.add(builder.stream("compute"), op);
  const Plan plan = std::move(builder).build({});
  return KernelCost(cluster, software).ns(op, plan) / 1e3;
}

// FlashAttention 3 of vLLM on an H200, 128 requests of 8,191 cached tokens, 8 and 1 heads: 138 us, and 102 us
// from a cache in fp8.
TEST(ServingCost, ACacheInEightBitsIsRead) {
  const Cluster h200 = find_cluster("hgx-h200");
  SoftwareProfile software = find_software("vllm");
  EXPECT_NEAR(decode_us(h200, software, 128, 8192), 138, 0.1 * 138);
  software.fp8_cache = true;
  EXPECT_NEAR(decode_us(h200, software, 128, 8192), 102, 0.1 * 102);
}

// TensorRT-LLM's all-reduce of 1 MiB over four H200: 12.8 us.
TEST(ServingCost, TensorParallelRanksHaveTheSoftwaresAllReduce) {
  const Cluster h200 = find_cluster("hgx-h200", 2);
  const CollectiveSettings library = settings_of({}, find_software("cprun")),
                           own = settings_of({}, find_software("trtllm"));
  const auto us = [&](CollectiveKind kind, int gpus, const CollectiveSettings& settings) {
    const auto ranks = first_ranks(gpus);
    return region_ns(kind, 1 << 20, spread_of(ranks, h200), h200, settings) / 1e3;
  };
  EXPECT_NEAR(us(CollectiveKind::all_reduce, 4, own), 12.8, 0.1 * 12.8);
  EXPECT_EQ(us(CollectiveKind::reduce_scatter, 4, own) + us(CollectiveKind::all_gather, 4, own),
            us(CollectiveKind::all_reduce, 4, own));
  const auto of_library = [&](CollectiveKind kind, int gpus) {
    return collective_ns(kind, 1 << 20, first_ranks(gpus), h200) / 1e3;
  };
  EXPECT_EQ(us(CollectiveKind::all_reduce, 4, library), of_library(CollectiveKind::all_reduce, 4));
  EXPECT_EQ(us(CollectiveKind::all_reduce, 16, own), of_library(CollectiveKind::all_reduce, 16))
      << "across nodes";
  EXPECT_EQ(us(CollectiveKind::all_to_all, 4, own), of_library(CollectiveKind::all_to_all, 4));
}

// Of the groups of tensor-parallel ranks, that between the regions alone: gradients and their norm are the
// library's.
TEST(ServingCost, GroupsBetweenRegionsHaveTheSoftwaresAllReduce) {
  const Cluster h200 = find_cluster("hgx-h200");
  const CollectiveSettings own = settings_of({}, find_software("trtllm"));
  const Spread spread = spread_of(first_ranks(4), h200);
  const double region = region_ns(CollectiveKind::all_reduce, 1 << 20, spread, h200, own),
               library = collective_ns(CollectiveKind::all_reduce, 1 << 20, spread, h200, own);
  ASSERT_NE(region, library);
  for (const auto& [group, ns] : {std::pair("tp", region), std::pair("tp_kv", library),
                                  std::pair("norm_tp", library), std::pair("fsdp", library)}) {
    PlanBuilder builder(0, host_target());
    const View x = flat_view(builder.inout("x", DType::f32, 1 << 18), 0, 1 << 18);
    const AllReduce sum{builder.group(group, first_ranks(4)), ReduceOp::sum, x, x};
    builder.add(builder.stream("tp"), sum);
    const Plan plan = std::move(builder).build({});
    EXPECT_EQ(collective_ns(Collective(sum), plan, h200, own), ns) << group;
  }
}

TEST(ServingCost, ProductsAreAsUncertainAsTheRatesThatCount) {
  const Cluster h200 = find_cluster("hgx-h200");
  double few = 0, cast = 0;
  for (const StoredProductRate& rate : h200.rates.stored_product) {
    if (rate.bits == 8) few = std::max(few, widths::eight_in_ten(rate.left_out.median, rate.left_out.p90));
  }
  for (const ProductRate& rate : h200.rates.product) {
    if (rate.bits == 16) cast = widths::eight_in_ten(rate.left_out.median, rate.left_out.p90);
  }
  EXPECT_EQ(product_width(h200, serving(LinearPrecision::fp8)), few);
  EXPECT_EQ(product_width(h200, find_software("cprun")), cast);
  EXPECT_NE(few, cast);
}

TEST(ServingSoftware, SaysWhereItsNumbersComeFrom) {
  for (const char* name : {"trtllm", "vllm", "sglang"}) {
    const SoftwareProfile software = find_software(name);
    for (const char* field : {"all_reduce", "stored_products", "fused_rows", "prompts_apart", "host_ahead",
                              "step_host_us", "request_host_us"})
      EXPECT_NE(find_source(software.sources, field), nullptr) << name << " " << field;
    EXPECT_EQ(software.all_reduce, name);
  }
  EXPECT_EQ(find_software("cprun").all_reduce, "nccl");
  EXPECT_FALSE(find_software("cprun").stored_products);
}

}  // namespace
}  // namespace cp::sim
