// cpsim list: the names that other commands' flags take.
#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "cli/common/exit_codes.h"
#include "cli/common/flags.h"
#include "cli/cpsim/commands.h"
#include "shared/base/error.h"
#include "shared/base/nearest.h"
#include "shared/context_parallel/strategy.h"
#include "sim/cost/cluster/read_cluster.h"
#include "sim/cost/cluster/read_software.h"
#include "sim/planner/models/read_model.h"

namespace cp::cli {
namespace {

struct Kind {
  std::string_view name;
  std::string_view title;  // where they are used, and what else is
  std::vector<std::string> (*names)();
};

const std::array<Kind, 4>& kinds() {
  static const std::array<Kind, 4> kKinds = {
      {{"clusters", "--cluster, or a file that ends in .txtpb", [] { return sim::cluster_names(); }},
       {"models", "--model, or the path of a config.json", [] { return sim::model_names(); }},
       {"software", "--software, or a file that ends in .txtpb", [] { return sim::software_names(); }},
       {"strategies", "--strategy", [] { return strategy_names(); }}}};
  return kKinds;
}

int run(const std::string& wanted) {
  std::vector<std::string> known;
  bool found = false;
  for (const Kind& kind : kinds()) {
    known.emplace_back(kind.name);
    if (!wanted.empty() && wanted != kind.name) continue;
    found = true;
    // If one kind is asked for, a script reads the list: one name on each line.
    if (wanted.empty()) fmt::print("{}: {}\n", kind.name, kind.title);
    for (const std::string& name : kind.names()) fmt::print("{}{}\n", wanted.empty() ? "  " : "", name);
  }
  if (found) return kSuccess;
  const std::string near = nearest(wanted, known);
  throw InvalidInput(str("there is no list of '", wanted, "'; ",
                         near.empty() ? "" : str("the nearest one is ", near, "; "),
                         "use one of: ", join(known, ", ")));
}

}  // namespace

Command add_list(FlagSet cpsim) {
  const FlagSet app =
      cpsim.add_subcommand("list", "List the names of clusters, models, software profiles and strategies");
  const auto kind = std::make_shared<std::string>();
  app.add_option("kind", *kind, "What is listed: clusters, models, software or strategies [all of them]")
      .type_name("KIND");
  app.footer("Example:\n  cpsim list clusters");
  return {app, [kind] { return run(*kind); }};
}

}  // namespace cp::cli
