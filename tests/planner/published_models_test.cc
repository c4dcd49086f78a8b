// The configs of open models as people download them (published_models/): each is read as what it is, with as
// many parameters as were published, or refused by what is not described.
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "sim/cost/presets/csv.h"
#include "sim/planner/models/read_model.h"
#include "tests/support/messages.h"
#include "traces/read_text.h"

namespace cp {
namespace {

using ::testing::HasSubstr;
using testing::message_of;

const std::string kFolder = CP_SOURCE_DIR "/tests/planner/published_models/";

sim::ReadModel read(const std::string& name) {
  return sim::read_model(read_text_file(kFolder + name + ".json", "model"), name + ".json", name);
}

// What is not described yet, and why.
const std::map<std::string, std::string>& refused() {
  static const std::map<std::string, std::string> kAll = [] {
    std::map<std::string, std::string> reasons;
    const auto add = [&](const std::vector<std::string>& names, const char* reason) {
      for (const std::string& name : names) reasons[name] = reason;
    };
    add({"nemotron-super-49b"}, "layers of different sizes");
    return reasons;
  }();
  return kAll;
}

// Of a layer that predicts a further token (MTP), which published totals count: without its copies of the
// embedding and of the head, which some files have stored.
std::int64_t prediction_layer(Transformer model) {
  const std::int64_t without = parameter_counts(model).total;
  model.prediction_layers = 1;
  return parameter_counts(model).total - without;
}

// What was counted of the files (layers.md), but for what is neither counted nor timed of any layer: a number
// for each of the 256 experts, by which DeepSeek's routers choose.
TEST(PublishedModels, HavePredictionLayersAsLargeAsPublished) {
  const Transformer deepseek = read("deepseek-v3").model;
  EXPECT_EQ(parameter_counts(deepseek).total + std::int64_t{58} * 256, 671'026'419'200);
  EXPECT_EQ(prediction_layer(deepseek) + 256, 11'610'068'224);
  EXPECT_EQ(prediction_layer(read("deepseek-r1").model) + 256, 11'610'068'224);
  EXPECT_EQ(prediction_layer(read("qwen3-next-80b-a3b").model), 1'650'471'424);
  // Two digits behind the point: HF totals with copies 358.34 and 110.47 B, 352.80 and 106.85 B without.
  const auto with_copies = [](const char* name) {
    const Transformer model = read(name).model;
    const ParameterCounts counts = parameter_counts(model);
    return static_cast<double>(counts.total + prediction_layer(model) + 2 * counts.embedding) / 1e9;
  };
  EXPECT_NEAR(with_copies("glm-4.5"), 358.34, 0.005);
  EXPECT_NEAR(with_copies("glm-4.5-air"), 110.47, 0.005);
}

TEST(PublishedModels, AreReadOrRefusedByWhatIsMissing) {
  std::size_t counted = 0;
  for (const sim::CsvRow& row : sim::read_csv(read_text_file(kFolder + "sizes.csv", "table"), "sizes.csv")) {
    const std::string name = row.text("name");
    if (const auto reason = refused().find(name); reason != refused().end()) {
      EXPECT_THAT(message_of([&] { read(name); }), HasSubstr(reason->second)) << name;
      continue;
    }
    ++counted;
    const sim::ReadModel model = read(name);
    ParameterCounts counts = parameter_counts(model.model);
    if (name.starts_with("glm-4.5") || name == "deepseek-v3" || name == "deepseek-r1") {
      EXPECT_THAT(model.assumptions, ::testing::Contains(HasSubstr("(MTP) are neither counted nor timed")));
      EXPECT_EQ(model.prediction_layers, 1) << name;
      counts.total += prediction_layer(model.model) + 2 * counts.embedding;
    }
    // It is not in this config, and takes the embedding and the head of the model.
    if (name.starts_with("qwen3-next")) counts.total += prediction_layer(model.model);
    const auto published = static_cast<double>(row.whole("total_parameters"));
    const double total = static_cast<double>(counts.total) / published;
    // Of those with vision the language model alone is read. The tower has some 0.42 B parameters, and the
    // smallest of the language models 3.88 B.
    if (row.text("counts") == "with_vision") {
      EXPECT_LT(total, 1) << name;
      EXPECT_GT(total, 0.9) << name;
    } else {
      // Of some nothing but the name was found, which has two digits.
      const bool in_name_alone = row.text("certainty").find("(name)") != std::string::npos;
      EXPECT_NEAR(total, 1, in_name_alone ? 0.01 : 0.005) << name << ": " << counts.total;
    }
    if (row.text("active_parameters").empty()) continue;
    // Two digits are published of those with experts, so that 22 B may be 21.5 B or 22.5 B, which is 2.3 %;
    // and some count the embedding, or neither it nor the head.
    const double active = static_cast<double>(counts.active),
                 embedding = static_cast<double>(counts.embedding),
                 said = static_cast<double>(row.whole("active_parameters"));
    double off = 1;
    for (const double beside : {0.0, embedding, -embedding})
      off = std::min(off, std::abs((active + beside) / said - 1));
    // 3 B may be 2.5 B or 3.5 B. Of LFM2-8B-A1B, which has 1.56 B with the head, 1.5 B are said.
    const std::map<std::int64_t, double> most = {{3'000'000'000, 0.17}, {1'500'000'000, 0.04}};
    const auto wider = most.find(row.whole("active_parameters"));
    EXPECT_LT(off, wider == most.end() ? 0.025 : wider->second) << name << ": " << active;
  }
  EXPECT_GE(counted, 38U);
}

// Each layer's window; 0: none.
std::string windows_of(const std::string& name) {
  const Transformer model = read(name).model;
  std::vector<std::string> runs;
  std::int64_t last = -1, count = 0;
  const auto end_run = [&] {
    if (count > 0) runs.push_back(str(count, "x", last));
  };
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    const std::int64_t window =
        model.kinds[static_cast<std::size_t>(model.kind_of(layer))].window.value_or(0);
    if (window != last) end_run(), last = window, count = 0;
    ++count;
  }
  end_run();
  return join(runs, " ");
}

// Each layer: d without experts, e with; upper case if it sees all keys and others have chunks.
std::string layers_of(const std::string& name) {
  const Transformer model = read(name).model;
  std::string all;
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    const LayerKind& kind = model.kinds[static_cast<std::size_t>(model.kind_of(layer))];
    const char letter = model.parts_of(kind).mlp == Mlp::dense ? 'd' : 'e';
    all += kind.chunk ? letter : static_cast<char>(letter - 'a' + 'A');
  }
  return all;
}

TEST(PublishedModels, HaveTheExpertsAndChunksOfTheirLayers) {
  std::string maverick, scout;
  for (int four = 0; four < 12; ++four) maverick += "dedE", scout += "eeeE";
  EXPECT_EQ(layers_of("llama-4-maverick"), maverick);
  EXPECT_EQ(layers_of("llama-4-scout"), scout);
  EXPECT_EQ(layers_of("glm-4.5"), "DDD" + std::string(89, 'E'));
  EXPECT_EQ(read("llama-4-maverick").model.experts, (Experts{128, 1, 8192, 8192}));
  EXPECT_EQ(read("llama-4-maverick").model.intermediate, 16384);
  EXPECT_EQ(read("glm-4.5-air").model.experts, (Experts{128, 8, 1408, 1408, false, false, true}));
}

// Each layer: M with Mamba-2 alone, G with a gated delta net and experts, and so on.
std::string parts_of(const std::string& name) {
  const Transformer model = read(name).model;
  std::string all;
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    const LayerKind& kind = model.kinds[static_cast<std::size_t>(model.kind_of(layer))];
    const LayerParts parts = model.parts_of(kind);
    if (parts == LayerParts{Mixer::recurrence, Mlp::none}) all += 'M';
    if (parts == LayerParts{Mixer::attention, Mlp::none}) all += '*';
    if (parts == LayerParts{Mixer::none, Mlp::dense}) all += '-';
    if (parts == LayerParts{Mixer::none, Mlp::experts}) all += 'E';
    if (parts == LayerParts{Mixer::recurrence, Mlp::experts}) all += 'G';
    if (parts == LayerParts{Mixer::attention, Mlp::experts}) all += 'A';
    if (parts == LayerParts{Mixer::attention, Mlp::dense}) all += 'a';
    if (parts == LayerParts{Mixer::convolution, Mlp::dense}) all += 'c';
    if (parts == LayerParts{Mixer::convolution, Mlp::experts}) all += 'C';
  }
  return all;
}

TEST(PublishedModels, HaveTheRecurrencesOfTheirLayers) {
  EXPECT_EQ(parts_of("nemotron-h-8b"), "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-");
  EXPECT_EQ(parts_of("nemotron-3-nano-30b-a3b"), "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME");
  std::string next;
  for (int four = 0; four < 12; ++four) next += "GGGA";
  EXPECT_EQ(parts_of("qwen3-next-80b-a3b"), next);
  EXPECT_EQ(read("qwen3-next-80b-a3b").model.recurrence,
            (Recurrence{RecurrenceRule::delta, 16, 32, 128, 128, 4, false}));
  EXPECT_EQ(read("nemotron-h-8b").model.recurrence,
            (Recurrence{RecurrenceRule::decay, 8, 128, 128, 64, 4, true}));
  EXPECT_TRUE(read("qwen3-next-80b-a3b").model.gated_attention);
  EXPECT_FALSE(read("nemotron-h-8b").model.gated_mlp);
  EXPECT_FALSE(read("nemotron-4-340b").model.gated_mlp);
}

TEST(PublishedModels, HaveTheConvolutionsOfTheirLayers) {
  EXPECT_EQ(parts_of("lfm2-1.2b"), "ccaccaccacacacac");
  EXPECT_EQ(parts_of("lfm2-2.6b"), "ccaccacccacccacccacccaccaccacc");
  EXPECT_EQ(parts_of("lfm2-8b-a1b"), "ccACCCACCCACCCACCCACCACC");
  for (const char* name : {"lfm2-1.2b", "lfm2-2.6b", "lfm2-8b-a1b"})
    EXPECT_EQ(read(name).model.convolution, (ShortConvolution{3, false})) << name;
  EXPECT_EQ(read("lfm2-1.2b").model.intermediate, 8192);
  EXPECT_EQ(read("lfm2-8b-a1b").model.experts, (Experts{32, 4, 1792, 0, false, false, true}));
}

// The file of a model, with one line changed.
std::string error_of(const std::string& name, const std::string& from, const std::string& to) {
  std::string text = read_text_file(kFolder + name + ".json", "model");
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  return message_of([&] { sim::read_model(text, "changed.json", name); });
}

// Transformers 5 save a word for each layer in place of a letter, of two spellings, and no number of layers.
TEST(PublishedModels, HaveTheListOfPartsInWords) {
  for (const bool newer : {false, true}) {
    nlohmann::json config =
        nlohmann::json::parse(read_text_file(kFolder + "nemotron-3-nano-30b-a3b.json", "model"));
    std::vector<std::string> words;
    for (const char letter : config.at("hybrid_override_pattern").get<std::string>()) {
      words.emplace_back(letter == 'M'   ? newer ? "linear_attention" : "mamba"
                         : letter == '*' ? newer ? "full_attention" : "attention"
                         : letter == 'E' ? "moe"
                                         : "mlp");
    }
    config.erase("hybrid_override_pattern"), config.erase("num_hidden_layers");
    config["layers_block_type"] = words;
    EXPECT_EQ(sim::read_model(config.dump(), "words.json", "nemotron-3-nano-30b-a3b").model,
              read("nemotron-3-nano-30b-a3b").model);
  }
}

TEST(PublishedModels, AreRefusedWhereTheListOfPartsIsWrong) {
  EXPECT_THAT(error_of("nemotron-h-8b", "hybrid_override_pattern", "pattern_of_layers"),
              HasSubstr("hybrid_override_pattern is missing; write a letter for each layer"));
  EXPECT_THAT(error_of("nemotron-h-8b", "\"M-M-M-M*", "\"M-M-M-MX"),
              HasSubstr("hybrid_override_pattern has 'X' for layer 7"));
  EXPECT_THAT(error_of("nemotron-h-8b", "\"M-M-M-M*", "\"M-M-M-M"),
              HasSubstr("hybrid_override_pattern has 51 letters, and num_hidden_layers is 52"));
  EXPECT_THAT(error_of("nemotron-h-8b", "\"M-M-M-M*", "\"MEM-M-M*"),
              HasSubstr("hybrid_override_pattern has E, and n_routed_experts is missing"));
  EXPECT_THAT(error_of("olmo-2-13b", "\"hidden_act\": \"silu\"", "\"hybrid_override_pattern\": \"M*\""),
              HasSubstr("hybrid_override_pattern is read of model_type nemotron_h alone"));
  EXPECT_THAT(error_of("olmo-2-13b", "\"hidden_act\": \"silu\"", "\"layers_block_type\": [\"mamba\"]"),
              HasSubstr("layers_block_type is read of model_type nemotron_h alone"));
  std::string words = R"("layers_block_type": ["moe")";  // one of 52
  for (int layer = 1; layer < 52; ++layer) words += R"(, "mamba")";
  EXPECT_THAT(error_of("nemotron-h-8b", "\"hybrid_override_pattern\"", words + "], \"_letters\""),
              HasSubstr("layers_block_type has \"moe\", and n_routed_experts is missing"));
  EXPECT_THAT(
      error_of("qwen3-next-80b-a3b", "\"linear_num_key_heads\": 16", "\"linear_num_key_heads\": 15"),
      HasSubstr("the 15 key heads of recurrences do not divide their 32 value heads; the nearest number "
                "below that does is 8"));
  EXPECT_THAT(error_of("nemotron-h-8b", "\"hybrid_override_pattern\"",
                       "\"layers_block_type\": [\"mamba\", \"mlp\"], \"hybrid_override_pattern\""),
              HasSubstr("and layers_block_type says M-; leave one of the two out"));
  EXPECT_THAT(error_of("nemotron-h-8b", "\"hybrid_override_pattern\"",
                       "\"layers_block_type\": [\"mamba\", \"rwkv\"], \"hybrid_override_pattern\""),
              HasSubstr("layers_block_type has \"rwkv\" for layer 1; what is described is mamba"));
  EXPECT_THAT(error_of("nemotron-h-8b", "\"hybrid_override_pattern\"",
                       "\"layers_block_type\": [\"mamba\", \"mlp\"], \"pattern\""),
              HasSubstr("layers_block_type has 2 entries, and num_hidden_layers is 52"));
  // A config may have a number of experts, and no layer with any.
  EXPECT_EQ(error_of("nemotron-h-8b", "\"n_groups\": 8",
                     "\"n_groups\": 8, \"n_routed_experts\": 8, \"num_experts_per_tok\": 2"),
            "no error");
}

TEST(PublishedModels, HaveTheWindowsOfTheirLayers) {
  std::string gpt_oss;
  for (int pair = 0; pair < 12; ++pair) gpt_oss += str(pair == 0 ? "" : " ", "1x128 1x0");
  EXPECT_EQ(windows_of("gpt-oss-20b"), gpt_oss);
  std::string gemma;
  for (int pattern = 0; pattern < 8; ++pattern) gemma += str(pattern == 0 ? "" : " ", "5x1024 1x0");
  EXPECT_EQ(windows_of("gemma-3-12b"), gemma);
  EXPECT_EQ(windows_of("mistral-7b"), "32x4096");
  EXPECT_EQ(windows_of("qwen2.5-72b"), "80x0");
}

}  // namespace
}  // namespace cp
