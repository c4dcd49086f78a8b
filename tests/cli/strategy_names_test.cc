// That people are told of every strategy: a core that is added has a row, from which names come
// (shared/context_parallel/cores.h), and the help is words.
#include <regex>
#include <string>

#include <gtest/gtest.h>

#include "shared/context_parallel/strategy.h"
#include "tests/cli/cpsim_process.h"

namespace cp::cli {
namespace {

bool has_word(const std::string& text, const std::string& word) {
  return std::regex_search(text, std::regex("\\b" + word + "\\b"));
}

TEST(StrategyNames, AreAllInTheHelpAndInTheList) {
  const std::string help = cpsim({"run", "--help"}).out, list = cpsim({"list", "strategies"}).out;
  ASSERT_FALSE(has_word(help, "no_such_strategy"));
  for (const std::string& name : strategy_names()) {
    EXPECT_TRUE(has_word(help, name)) << name << " is not in the help of --strategy";
    EXPECT_TRUE(has_word(list, name)) << name << " is not in cpsim list strategies";
  }
}

}  // namespace
}  // namespace cp::cli
