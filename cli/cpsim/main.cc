// cpsim: plans and simulates context-parallel training. Parses the command line, runs one command, and turns
// errors into messages and exit codes.
#include <cstddef>
#include <cstdio>
#include <exception>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "cli/common/exit_codes.h"
#include "cli/common/flags.h"
#include "cli/common/interrupt.h"
#include "cli/common/printable.h"
#include "cli/common/standard_output.h"
#include "cli/cpsim/commands.h"
#include "shared/base/error.h"
#include "shared/base/nearest.h"
#include "shared/base/version.h"
#include "sim/base/stop.h"

namespace cp::cli {
namespace {

// The innermost command that was recognised: "cpsim verify redistribute".
const CLI::App& innermost(const CLI::App& app) {
  const auto parsed = app.get_subcommands();
  return parsed.empty() ? app : innermost(*parsed.front());
}

std::string path_of(const CLI::App& app) {
  const CLI::App* parent = app.get_parent();
  return parent == nullptr ? app.get_name() : str(path_of(*parent), " ", app.get_name());
}

std::vector<std::string> subcommands_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  return names;
}

// The flags that --help lists. Nobody is sent to a spelling of earlier versions.
std::vector<std::string> flags_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;
    for (const std::string& name : option->get_lnames()) names.push_back(str("--", name));
  }
  return names;
}

int fail_usage(const CLI::App& app, const std::string& message) {
  fmt::print(stderr, "{}: {}\n", path_of(app), printable(message));
  return exit_code(ErrorKind::invalid_input);
}

// A word that no command or flag takes.
int fail_unknown(const CLI::App& app, const std::string& word) {
  const bool is_flag = word.starts_with("-");
  const std::vector<std::string> known = is_flag ? flags_of(app) : subcommands_of(app);
  const std::string wanted = is_flag ? word.substr(0, word.find('=')) : word;
  const std::string near = nearest(wanted, known);
  const char* what = is_flag ? "flag" : known.empty() ? "argument" : "command";
  if (!near.empty())
    return fail_usage(app, fmt::format("unknown {} '{}'; did you mean {}?", what, wanted, near));
  const std::string list = is_flag || known.empty() ? fmt::format("see {} --help", path_of(app))
                                                    : fmt::format("use one of: {}", join(known, ", "));
  return fail_usage(app, fmt::format("unknown {} '{}'; {}", what, wanted, list));
}

// Returns the flag that was given more often than it takes values, or null. A flag without values may come
// again.
const CLI::Option* repeated_flag(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    const int most = option->get_items_expected_max();
    if (most > 0 && option->count() > static_cast<std::size_t>(most)) return option;
  }
  return nullptr;
}

// The first flag of the command line that has fewer values than it needs.
const CLI::Option* flag_without_value(const CLI::App& app, std::span<char* const> words) {
  for (const std::string_view word : words) {
    const std::string name(word.substr(0, word.find('=')));
    for (const CLI::Option* option : app.get_options()) {
      const bool is_short = option->count() < static_cast<std::size_t>(option->get_items_expected_min());
      if (is_short && name.starts_with('-') && option->check_name(name)) return option;
    }
  }
  return nullptr;
}

// Returns the word that a command needs and did not get, such as the file of `cpsim trace show`.
const CLI::Option* missing_word(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_required() && option->count() == 0) return option;
  }
  return nullptr;
}

int explain(const CLI::App& cpsim, const CLI::ParseError& error, std::span<char* const> words) {
  const CLI::App& app = innermost(cpsim);
  const std::vector<std::string> extras = cpsim.remaining(true);
  if (dynamic_cast<const CLI::Success*>(&error) != nullptr) return cpsim.exit(error);  // --help, --version
  if (!extras.empty()) return fail_unknown(app, extras.front());
  if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr && !subcommands_of(app).empty()) {
    return fail_usage(app,
                      fmt::format("a command is missing; use one of: {}", join(subcommands_of(app), ", ")));
  }
  if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) {
    if (const CLI::Option* missing = missing_word(app))
      return fail_usage(app, fmt::format("the argument {} is missing ({}); see {} --help",
                                         missing->get_name(), missing->get_type_name(), path_of(app)));
  }
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) {
    if (const CLI::Option* repeated = repeated_flag(app))
      return fail_usage(app, fmt::format("{} was given more than once; give it once", repeated->get_name()));
    if (const CLI::Option* wanting = flag_without_value(app, words)) {
      const int values = wanting->get_items_expected_min();
      return fail_usage(app, fmt::format("{} needs {} ({}); see {} --help", wanting->get_name(),
                                         values == 1 ? "a value" : fmt::format("{} values", values),
                                         wanting->get_type_name(), path_of(app)));
    }
  }
  return fail_usage(app, fmt::format("{}; see {} --help", error.what(), path_of(app)));
}

const CLI::App* find_command(const CLI::App& cpsim, const std::vector<std::string>& words) {
  const CLI::App* app = &cpsim;
  for (const std::string& word : words) {
    const auto all =
        app->get_subcommands([&](const CLI::App* command) { return command->get_name() == word; });
    if (all.empty()) return nullptr;
    app = all.front();
  }
  return app;
}

Command add_help(CLI::App& cpsim) {
  const FlagSet app = FlagSet(cpsim).add_subcommand("help", "Show the help of a command");
  const auto words = std::make_shared<std::vector<std::string>>();
  app.add_option("command", *words, "The command whose help is shown, for example redistribute")
      .type_name("COMMAND");
  app.footer("Example:\n  cpsim help redistribute");
  return {app, [&cpsim, words] {
            const CLI::App* command = find_command(cpsim, *words);
            if (command == nullptr) {
              throw InvalidInput(str("there is no command '", join(*words, " "),
                                     "'; use one of: ", join(subcommands_of(cpsim), ", ")));
            }
            // Not command->help(): it shows the command that was parsed, which is this one.
            const auto formatter = command->get_formatter();
            fmt::print("{}", formatter->make_help(command, path_of(*command), CLI::AppFormatMode::Normal));
            return kSuccess;
          }};
}

int run(const CLI::App& cpsim, const std::vector<Command>& commands) {
  for (const Command& command : commands) {
    if (command.app.parsed()) return command.run();
  }
  return fail_usage(cpsim, "no command was given; see cpsim --help");
}

int main(int argc, char** argv) {
  handle_interrupts("cpsim");
  CLI::App cpsim(
      "cpsim plans parallel layouts and context-parallel attention, checks them on a simulated cluster,\n"
      "and predicts their time and memory.",
      "cpsim");
  wrap_help(cpsim);
  cpsim.set_version_flag("--version", "cpsim " CP_VERSION);
  cpsim.require_subcommand(1);
  cpsim.footer(
      "Example:\n"
      "  cpsim plan --model llama-3.1-8b --cluster dgx-h100 --nodes 2 --seq-len 128K --global-batch 16\n"
      "  cpsim run --mesh cp=8 --strategies all --seq-len 1021 --q-heads 8 --kv-heads 2 --causal --backward\n"
      "  cpsim estimate --cluster dgx-h100 --mesh cp=16 --strategy ring --balance head_tail --seq-len 131072 "
      "\\\n"
      "    --q-heads 32 --kv-heads 8 --head-dim 128 --dtype bf16 --causal --pass both\n"
      "  cpsim redistribute --mesh dp=2,tp=4 --shape 4096x4096 --from 'S(0),R' --to 'R,S(1)'\n\n"
      "cpsim COMMAND --help explains the flags of a command, with an example.\n\n" +
      exit_codes_text(kHelpColumns));
  std::vector<Command> commands = {add_plan(cpsim),     add_run(cpsim),      add_redistribute(cpsim),
                                   add_prove(cpsim),    add_estimate(cpsim), add_validate(cpsim),
                                   add_calibrate(cpsim)};
  const FlagSet verify = FlagSet(cpsim).add_subcommand("verify", "Check every case of a small size");
  verify.require_subcommand();
  verify.footer("Example:\n  cpsim verify redistribute --ranks 4 --tensor-dims 2");
  commands.push_back(add_verify_redistribute(verify));
  commands.push_back(add_fuzz(cpsim));
  commands.push_back(add_replay(cpsim));
  commands.push_back(add_mutate(cpsim));
  for (Command& command : add_trace(cpsim)) commands.push_back(std::move(command));
  commands.push_back(add_parameter(cpsim));
  commands.push_back(add_mesh(cpsim));
  commands.push_back(add_list(cpsim));
  commands.push_back(add_help(cpsim));
  try {
    cpsim.parse(argc, argv);
    return run(cpsim, commands);
  } catch (const sim::Stopped&) {
    end_interrupted();  // with nothing half done to show
  } catch (const CLI::ParseError& error) {
    return explain(cpsim, error, {argv, static_cast<std::size_t>(argc)});
  } catch (const Error& error) {
    fmt::print(stderr, "{}: {}\n", path_of(innermost(cpsim)), printable(error.what()));
    return exit_code(error.kind());
  } catch (const std::bad_alloc&) {
    return fail_usage(innermost(cpsim),
                      "the memory of this machine is not enough; use a smaller tensor or fewer ranks");
  } catch (const std::system_error& error) {
    if (std::ferror(stdout) != 0) throw;  // of a print: finish_output() says it
    fmt::print(stderr, "{}: internal error: {}\n", path_of(innermost(cpsim)), error.what());
    return kInternalError;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: internal error: {}\n", path_of(innermost(cpsim)), error.what());
    return kInternalError;
  }
}

}  // namespace
}  // namespace cp::cli

int main(int argc, char** argv) {
  return cp::cli::finish_output("cpsim", [&] { return cp::cli::main(argc, argv); });
}
