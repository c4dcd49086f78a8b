// Times that follow from few numbers, and the texts that hold them.
#include "sim/cost/cluster/rates.h"

#include <algorithm>
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "sim/cost/cluster/attention_kernels.h"
#include "sim/cost/cluster/read_cluster.h"
#include "sim/cost/cluster/read_rates.h"
#include "tests/support/messages.h"

namespace cp::sim {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;

AttentionRate round_attention_rate() {
  AttentionRate rate;
  rate.kernel = "fa", rate.head_dim = 64, rate.provenance.source = "by hand";
  rate.floor_us = 10, rate.tflops = 1, rate.startup_keys = 100, rate.tile_rows = 128;
  return rate;
}

// 1 TFLOP/s and 1 flop a pair: a million pairs are a microsecond.
TEST(AttentionRate, RowsPayForTheirKeysAndForStarting) {
  AttentionCall shape;
  shape.heads = 1000;
  shape.causal = {1000.0 * 900, 1000, 1, 1000};
  // 1000 heads x 1000 rows x (900 + 100) keys; one tile of (1000 + 100) keys x 128 rows, on each of 10.
  EXPECT_DOUBLE_EQ(attention_us(round_attention_rate(), shape, 1, 10, 1), 10 + 1000 + 1.408);
  EXPECT_DOUBLE_EQ(attention_us(round_attention_rate(), shape, 1, 10, 2), 10 + (1000 + 1.408) / 2)
      << "twice as fast";
  AttentionRate hides = round_attention_rate();
  hides.blend = 2;
  EXPECT_DOUBLE_EQ(attention_us(hides, shape, 1, 10, 1), 10 + std::hypot(1000, 1.408));
}

TEST(AttentionRate, MasksHaveStartupsOfTheirOwn) {
  AttentionRate rate = round_attention_rate();
  rate.full_startup_keys = 300;
  AttentionCall full, window;
  full.heads = window.heads = 1e3;
  full.full = window.window = {1e6, 1e3, 1, 1e3};
  EXPECT_DOUBLE_EQ(attention_us(rate, full, 1, 1, 1), 10 + 1300 + 1300 * 128e-6);
  EXPECT_DOUBLE_EQ(attention_us(rate, window, 1, 1, 1), 10 + 1100 + 1100 * 128e-6) << "as causal";
  rate.window_startup_keys = 200;
  EXPECT_DOUBLE_EQ(attention_us(rate, window, 1, 1, 1), 10 + 1200 + 1200 * 128e-6);
}

// 32 rows of one head fill a quarter of a tile, and a whole one where four heads share it.
TEST(AttentionRate, APartOfATileCostsAWholeOne) {
  AttentionCall shape;
  shape.heads = 1e6, shape.group = 4;
  shape.full = {32.0 * 900, 32, 1, 900};
  AttentionRate rate = round_attention_rate();
  const double tile = 1000 * 128 * 1e-6;
  EXPECT_DOUBLE_EQ(attention_us(rate, shape, 1, 1, 1), 10 + 1e6 * 128 * 1000 * 1e-6 + tile);
  rate.shared_tiles = true;
  EXPECT_DOUBLE_EQ(attention_us(rate, shape, 1, 1, 1), 10 + 1e6 * 32 * 1000 * 1e-6 + tile);
}

TEST(ProductRate, NarrowProductsWaitForTheirOperands) {
  ProductRate rate;
  rate.bits = 16, rate.floor_us = 3, rate.tflops = 100, rate.startup_k = 0, rate.memory_share = 0.5;
  rate.blend = 1;
  const double wide = product_us(rate, 8192, 8192, 8192, 2000, 1),
               narrow = product_us(rate, 16, 8192, 8192, 2000, 1);
  EXPECT_NEAR(wide, 3 + 2 * 8192.0 * 8192 * 8192 / 1e8 + 3 * 8192.0 * 8192 * 2 / 1e6, 1e-9);
  EXPECT_NEAR(narrow, 3 + 2 * 64.0 * 8192 * 8192 / 1e8 + ((16 + 8192) * 8192.0 + 16 * 8192.0) * 2 / 1e6,
              1e-9);
  rate.bits = 8;  // half of the operands, and the left one cast
  EXPECT_NEAR(product_us(rate, 16, 8192, 8192, 2000, 1),
              3 + 2 * 64.0 * 8192 * 8192 / 1e8 + ((16 + 8192) * 8192.0 + 2 * 16 * 8192.0) / 1e6 +
                  3 * 16 * 8192.0 / 1e6,
              1e-9);
}

constexpr const char* kRatesText = R"(gpu: "mine"
tflops_16: 100
hbm_gbps: 1000
sms: 10
attention { kernel: "fa9" head_dim: 64 floor_us: 5 tflops: 50 startup_keys: 100 tile_rows: 128 origin: measured source: "x" }
product { bits: 16 floor_us: 3 tflops: 80 memory_share: 0.9 origin: measured source: "x" }
)";

TEST(RatesText, IsRead) {
  const Rates rates = read_rates(kRatesText, "a.txtpb");
  ASSERT_EQ(rates.attention.size(), 1U);
  EXPECT_EQ(rates.attention[0].kernel, "fa9");
  EXPECT_EQ(rates.attention[0].blend, 1) << "what is unset adds up";
  EXPECT_EQ(rates.product[0].tflops, 80);
  EXPECT_EQ(rates_of(message_of(rates)), rates);
}

TEST(RatesText, PresetsAreOfTheirGpus) {
  EXPECT_THAT(rates_names(), ElementsAre("a100-sxm", "b200-sxm", "b300-sxm", "gb200", "gb300", "h100-sxm",
                                         "h200-sxm", "l40s"));
  for (const std::string& name : rates_names()) {
    const Rates rates = find_rates(name);
    EXPECT_TRUE(rates_errors(rates).empty()) << name;
    for (const AttentionRate& rate : rates.attention) {
      EXPECT_TRUE(rate.left_out.p90 > 0) << name << " " << rate.kernel << " " << rate.head_dim;
    }
  }
}

TEST(RatesText, ErrorsHaveTheirPlaceAndWhatIsAllowed) {
  const struct {
    const char *from, *to, *error;
  } cases[] = {
      {"tflops: 50", "tflops: 0", "a.txtpb:5:1: attention[0].tflops: 0 is not in [1e-06, 1e+06]"},
      {"tflops: 50", "tflops: -1", "a.txtpb:5:52: attention[0].tflops: -1 is not in [1e-06, 1e+06]"},
      {"tflops: 50", "tflops: 150", "a.txtpb:5:52: attention[0].tflops: 150 is above tflops_16, 100"},
      {"kernel: \"fa9\" ", "", "a.txtpb:5:1: attention[0]: has no kernel; add, for example, kernel: \"fa3\""},
      {"startup_keys: 100 tile_rows: 128 origin: measured source: \"x\"", "startup_keys: 100 tile_rows: 128",
       "attention[0]: has neither origin nor source; add, for example, origin: published source: "},
      {"tile_rows: 128 origin: measured", "tile_rows: 128",
       "a.txtpb:5:1: attention[0]: has no origin; add origin: and one of measured, published, estimated, "
       "assumed, borrowed"},
      {"source: \"x\" }\nproduct", "}\nproduct", "attention[0]: has no source; add where it is from, or why"},
      {"memory_share: 0.9 origin: measured", "memory_share: 0.9",
       "a.txtpb:6:1: product[0]: has no origin; add "},
      {"bits: 16", "bits: 4", "a.txtpb:6:11: product[0].bits: 4 is neither 16 nor 8"},
      {"memory_share: 0.9", "memory_share: 1.5", "product[0].memory_share: 1.5 is not in [1e-06, 1]"},
      {"sms: 10", "sms: 10\nsms_: 1", "the nearest one is 'sms'"},
      {"attention {",
       "attention { kernel: \"fa9\" head_dim: 64 floor_us: 5 tflops: 50 startup_keys: 1 tile_rows: 1 "
       "origin: measured source: \"x\" }\nattention {",
       "a.txtpb:6:1: attention[1]: is a second rate of fa9 forward of head_dim 64; keep one"},
  };
  for (const auto& each : cases) {
    std::string text = kRatesText;
    text.replace(text.find(each.from), std::string(each.from).size(), each.to);
    EXPECT_THAT(message_of([&] { read_rates(text, "a.txtpb"); }), HasSubstr(each.error)) << text;
  }
}

std::string cluster_with(const std::string& rates) { return "name: \"mine\"\nlike: \"dgx-h100\"\n" + rates; }

TEST(ClusterRates, ArePresetsOrOnesOwn) {
  const Cluster preset =
      read_cluster(cluster_with("rates { preset: \"gb200\" origin: borrowed source: \"why\" }"), "a");
  EXPECT_EQ(preset.rates, find_rates("gb200"));
  EXPECT_EQ(preset.source_of("rates")->provenance, (Provenance{Origin::borrowed, "why: preset gb200"}));
  EXPECT_EQ(read_cluster(write_cluster(preset), "b"), preset);
  const Cluster own = read_cluster(
      cluster_with("rates { origin: measured source: \"mine\" own { " + std::string(kRatesText) + " } }"),
      "a");
  EXPECT_EQ(own.rates.gpu, "mine");
  EXPECT_EQ(read_cluster(write_cluster(own), "b"), own);
}

TEST(ClusterRates, ErrorsHaveTheirPlace) {
  const struct {
    const char *text, *error;
  } cases[] = {
      {"rates { preset: \"h100\" origin: measured source: \"x\" }",
       "a:3:1: rates: unknown preset of rates 'h100'; the nearest one is"},
      {"rates { preset: \"h100-sxm\" }",
       "a:3:1: rates: has neither origin nor source; add, for example, origin: "},
      {"rates { origin: measured source: \"x\" }",
       "a:3:1: rates: needs either a preset, for example preset: \"h100-sxm\", or own { ... }"},
      {"rates { origin: measured source: \"x\" own { tflops_16: 1 hbm_gbps: 1 sms: 1\nproduct { bits: 16 "
       "floor_us: 1 "
       "source: \"y\" } } }",
       "a:4:1: rates.own.product[0]: has no origin; add origin: and one of measured, published, estimated, "},
      {"rates { origin: measured source: \"x\" own { tflops_16: 1 hbm_gbps: 1 sms: 1\nproduct { bits: 16 "
       "floor_us: -1 } } }",
       "a:4:20: rates.own.product[0].floor_us: -1 is not in [0.001, 1e+06]"},
  };
  for (const auto& each : cases)
    EXPECT_THAT(message_of([&] { read_cluster(cluster_with(each.text), "a"); }), HasSubstr(each.error));
}

TEST(AttentionKernels, AreTheFirstThatTheClusterHas) {
  const Cluster h100 = find_cluster("dgx-h100");
  EXPECT_THAT(attention_kernels(h100), ElementsAre("fa3", "trtllm", "fa2", "cudnn"));
  EXPECT_EQ(chosen_kernel(h100, "any"), "fa3");
  EXPECT_EQ(chosen_kernel(h100, "cudnn, fa2"), "cudnn");
  EXPECT_EQ(chosen_kernel(h100, "fa9, fa2"), "fa2");
  EXPECT_EQ(chosen_kernel(h100, "fa9"), "fa3") << "none of them: as any";
  EXPECT_EQ(chosen_kernel(find_cluster("h800"), "any"), "fa2")
      << "measured on it comes before what is borrowed";
  EXPECT_EQ(chosen_kernel(find_cluster("generic"), "fa3"), "") << "has neither curve nor rate";
}

TEST(AttentionKernels, OneThatTheClusterLacksIsRefused) {
  const Cluster h100 = find_cluster("dgx-h100");
  const SoftwareProfile software = with_attention_kernel({}, h100, "fa2");
  EXPECT_EQ(software.attention_kernel, "fa2");
  EXPECT_EQ(message_of([&] { with_attention_kernel({}, h100, "fa4"); }),
            "attention kernel 'fa4': dgx-h100 (NVIDIA H100-SXM5-80GB) has no curve and no rate of it; the "
            "nearest one is "
            "'fa3'; use one of fa3, trtllm, fa2, cudnn");
  EXPECT_THAT(message_of([&] { with_attention_kernel({}, find_cluster("generic"), "fa3"); }),
              HasSubstr("generic has neither a curve nor a rate of any"));
}

}  // namespace
}  // namespace cp::sim
