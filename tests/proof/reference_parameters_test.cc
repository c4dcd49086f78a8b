// The parameters of the reference of a step: how many there are, their names, and what values are drawn.
#include "sim/proof/reference/reference_parameters.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "sim/planner/models/read_model.h"
#include "tests/proof/reference_models.h"
#include "tests/support/any_case.h"
#include "tests/support/messages.h"

namespace cp::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::int64_t numel(const std::vector<sim::ParameterShape>& shapes) {
  std::int64_t sum = 0;
  for (const sim::ParameterShape& shape : shapes)
    sum += sim::is_trained(shape.name) ? shape.rows * shape.columns : 0;
  return sum;
}

TEST(ReferenceParameters, AreAsManyAsEachPresetHas) {
  for (const std::string& name : sim::model_names()) {
    SCOPED_TRACE(name);
    sim::ReadModel read = sim::find_model(name);
    const std::int64_t most = std::min(read.prediction_layers, kMostPredictionLayers);
    if (most > 0) sim::plan_prediction_layers(read, most);
    EXPECT_EQ(numel(sim::parameter_shapes(read.model)), parameter_counts(read.model).total);
  }
}

RC_GTEST_PROP(ReferenceParameters, AreAsManyAsAnyModelHas, ()) {
  const StepRequest request = pick_case("request", [] { return StepRequest{any_model(), {}, {}}; });
  RC_ASSERT(numel(sim::parameter_shapes(request.model)) == parameter_counts(request.model).total);
}

TEST(ReferenceParameters, HaveTheNamesOfHuggingFace) {
  Transformer model = tiny_model();
  model.layers = 1;
  std::vector<std::string> lines;
  for (const sim::ParameterShape& shape : sim::parameter_shapes(model))
    lines.push_back(str(shape.name, " ", shape.rows, " x ", shape.columns));
  EXPECT_THAT(
      lines,
      ElementsAre(
          "model.embed_tokens.weight 17 x 12", "model.layers.0.input_layernorm.weight 1 x 12",
          "model.layers.0.self_attn.q_proj.weight 24 x 12", "model.layers.0.self_attn.k_proj.weight 12 x 12",
          "model.layers.0.self_attn.v_proj.weight 12 x 12", "model.layers.0.self_attn.o_proj.weight 12 x 24",
          "model.layers.0.post_attention_layernorm.weight 1 x 12",
          "model.layers.0.mlp.gate_proj.weight 10 x 12", "model.layers.0.mlp.up_proj.weight 10 x 12",
          "model.layers.0.mlp.down_proj.weight 12 x 10",  //
          "model.norm.weight 1 x 12", "lm_head.weight 17 x 12"));
}

TEST(ReferenceParameters, ValuesAreThoseOfTheirNameAndSeed) {
  Transformer model = tiny_model();
  const sim::NamedMatrices parameters = sim::draw_parameters(model, 7);
  model.layers = 4, model.tied_embeddings = true;
  const sim::NamedMatrices of_deeper = sim::draw_parameters(model, 7),
                           of_other = sim::draw_parameters(model, 8);
  const std::string q = "model.layers.1.self_attn.q_proj.weight";
  EXPECT_EQ(parameters.at(q), of_deeper.at(q));
  EXPECT_NE(parameters.at(q), of_other.at(q));
  EXPECT_NE(parameters.at(q), parameters.at("model.layers.0.self_attn.q_proj.weight"));
}

// bf16 has 8 bits of precision: times 2^8, a number in [1/2, 1) is whole.
TEST(ReferenceParameters, ValuesAreNumbersOfTheDtypeThatIsAskedFor) {
  const sim::NamedMatrices parameters = sim::draw_parameters(tiny_model(), 7, DType::bf16);
  std::int64_t differ = 0;
  for (const auto& [name, matrix] : parameters.all()) {
    for (const double value : matrix.values) {
      int exponent = 0;
      const double mantissa = std::frexp(value, &exponent) * 256;
      EXPECT_EQ(mantissa, std::floor(mantissa)) << name << " has " << value;
    }
    differ += matrix == sim::draw_parameters(tiny_model(), 7).at(name) ? 0 : 1;
  }
  EXPECT_EQ(differ, std::ssize(parameters.all()));
}

TEST(ReferenceParameters, AnUnknownNameIsRefusedWithTheNearest) {
  const sim::NamedMatrices parameters = sim::zero_parameters(tiny_model());
  EXPECT_THAT(message_of<InvalidInput>([&] { (void)parameters.at("model.norm.wieght"); }),
              HasSubstr("did you mean model.norm.weight"));
}

}  // namespace
}  // namespace cp::testing
