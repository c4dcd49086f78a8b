// Counterexamples are read by people: each drawn value has its name and its text form.
#include "tests/support/any_case.h"

#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/dtype.h"
#include "tests/context_parallel/problem_generator.h"
#include "tests/placement/layout_generator.h"
#include "tests/transformer/step_requests.h"

namespace cp::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

template <class T>
std::string shown(const T& value) {
  std::ostringstream out;
  show_text(value, out);
  return out.str();
}

enum class Nameless { first, second };

TEST(AnyCase, ValuesAreShownAsTheirTextForms) {
  EXPECT_EQ(shown(true), "true");
  EXPECT_EQ(shown(static_cast<unsigned char>(7)), "7");
  EXPECT_EQ(shown(std::string("a\n")), R"("a\n")");
  EXPECT_EQ(shown("text"), R"("text")");
  EXPECT_EQ(shown(DType::bf16), "bf16");
  EXPECT_EQ(shown(ReduceOp::max), "max");
  EXPECT_EQ(shown(Nameless::second), "number 1");
  EXPECT_EQ(shown(Mesh::parse("dp=2,tp=4")), "dp=2,tp=4");
  EXPECT_EQ(shown(parse_layout("S(0),R", Mesh::parse("a=2,b=2"), {4}, DType::f32)),
            to_string(parse_layout("S(0),R", Mesh::parse("a=2,b=2"), {4}, DType::f32)));
  EXPECT_EQ(shown(parse_recompute("every:2")), "every:2");
  EXPECT_EQ(shown(std::vector<DType>{DType::f32, DType::i64}), "[f32, i64]");
  EXPECT_EQ(shown(std::pair(1, std::optional<ReduceOp>())), "(1, none)");
  EXPECT_THAT(shown(small_request("tp=2")),
              AllOf(HasSubstr("tp=2: training of 24 tokens"), HasSubstr("vocab 50")));
  EXPECT_THAT(shown(Plan{}), HasSubstr("plan"));
}

// What rapidcheck prints of a property that does not hold.
template <class Property>
std::string counterexample(const Property& property) {
  std::ostringstream out;
  rc::detail::printResultMessage(
      rc::detail::checkTestable(property, rc::detail::TestMetadata(), rc::detail::TestParams()), out);
  return out.str();
}

TEST(AnyCase, CounterexamplesNameWhatTheyDrew) {
  const std::string text = counterexample([] {
    const int cp = pick("cp", rc::gen::inRange(1, 9));
    const DType dtype = pick("dtype", rc::gen::element(DType::bf16, DType::f16));
    const Layout layout = random_layout();
    const StepRequest request = any_request();
    const AttentionProblem problem = pick("problem", any_problem());
    RC_ASSERT(cp < 1 && dtype == DType::f32);
  });
  EXPECT_THAT(text, AllOf(HasSubstr("cp = 1\n"), HasSubstr("dtype = bf16\n"), HasSubstr("layout = "),
                          HasSubstr(" on axis0="), HasSubstr("request = "), HasSubstr("problem = ")));
  // No bytes: "<\x01\x00>", and nothing besides: every value has its name.
  EXPECT_THAT(text, Not(HasSubstr("\\x")));
  EXPECT_THAT(text, Not(HasSubstr("\nint:")));
}

}  // namespace
}  // namespace cp::testing
