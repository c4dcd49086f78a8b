// The flags of a command. A command's file describes them with these two classes and not with CLI11 itself,
// which flags.cc alone includes: CLI11 is all headers, and its functions are three quarters of what a file
// that includes them takes to compile.
//
//   FlagSet app = cpsim.add_subcommand("estimate", "The time of one attention on a cluster");
//   app.add_option("--cluster", flags->cluster, "A preset's name, or a file").type_name("NAME|FILE.txtpb");
//   app.add_flag("--json", flags->json, "Print JSON");
//
// A Flag and a FlagSet are names for things that the program's CLI::App owns. You may copy them, but not use
// them after that App is gone. A variable that a flag sets must live until the command line is parsed.
#pragma once

#include <cstddef>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "sim/scenario/read_values.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace cp::cli {

using sim::parse_bytes;
using sim::parse_gib;
using sim::parse_ms;
using sim::parse_real;
using sim::parse_whole;
using sim::target_of;
using sim::value_of;

class Flag {
 public:
  explicit Flag(CLI::Option* option = nullptr) : option_(option) {}

  Flag type_name(const std::string& text) const;  // what --help calls its value: "FILE"
  // The heading under which --help lists the flag. The empty text hides it.
  Flag group(const std::string& text) const;
  Flag required() const;
  Flag expected(int values) const;  // the flag takes exactly this many words
  // The flag may come several times, each time with one value; it does not take all words that follow.
  Flag one_value_each_time() const;
  Flag needs(Flag other) const;  // `other` must be given too
  std::size_t count() const;     // how often it was given

 private:
  CLI::Option* option_;
};

class FlagSet {
 public:
  FlagSet(CLI::App& app) : app_(&app) {}  // NOLINT(google-explicit-constructor): a name for it

  // Adds a flag that has a value. A name without dashes makes a positional word, such as the file of `cprun
  // FILE`. A vector takes all values that are given.
  Flag add_option(const std::string& name, std::string& value, const std::string& help = "") const;
  Flag add_option(const std::string& name, std::optional<std::string>& value, const std::string& help) const;
  Flag add_option(const std::string& name, std::vector<std::string>& values, const std::string& help) const;
  // The same for a value that is not simply stored: set(text) is called while the command line is parsed.
  // What it throws passes through the parsing.
  Flag add_option(const std::string& name, const std::function<void(const std::string&)>& set,
                  const std::string& help) const;
  Flag add_list(const std::string& name, const std::function<void(const std::vector<std::string>&)>& set,
                const std::string& help) const;

  // Adds "-o, --output", the flag that names the file a command writes. It is spelled alike in all commands.
  // `older` is what the flag was called before: it still works, but not together with the new one, and --help
  // does not list it.
  Flag add_output(std::string& path, const std::string& type, const std::string& help,
                  const std::string& older = "--out") const;

  // Adds a flag without a value, which sets `value` to true.
  Flag add_flag(const std::string& name, bool& value, const std::string& help = "") const;
  // A flag whose value may be left out. Its name is "--name{word}", and `word` is the value of a bare --name.
  Flag add_flag(const std::string& name, std::string& value, const std::string& help) const;
  // A flag without a value; set() is called while the command line is parsed.
  Flag add_flag(const std::string& name, const std::function<void()>& set, const std::string& help) const;

  FlagSet add_subcommand(const std::string& name, const std::string& help) const;
  // Flags that this subcommand does not have are looked for among those of the command above it.
  void fallthrough() const;
  // The command line must name one of the subcommands.
  void require_subcommand() const;
  void footer(const std::string& text) const;
  bool parsed() const;  // whether the command line names this subcommand

 private:
  CLI::App* app_;
};

// Adds a flag with a value; `type` is what --help calls it. set(text) is called while the command line is
// parsed.
inline Flag add_value(FlagSet app, const std::string& flag, const std::string& type, const std::string& help,
                      const std::function<void(const std::string&)>& set) {
  return app.add_option(flag, set, help).type_name(type);
}

// Adds a flag for a whole number of 1 or more. Parsing throws InvalidInput for another text.
inline Flag add_count(FlagSet app, const std::string& flag, int& value, const std::string& help) {
  return add_value(app, flag, "N", help, [&value, flag](const std::string& text) {
    value = static_cast<int>(parse_whole(flag, text, 1, std::numeric_limits<int>::max()));
  });
}

// Makes --help break its descriptions of flags and commands into lines of at most kHelpColumns bytes
// (exit_codes.h). This holds for `app` and for the commands that are added to it afterwards.
void wrap_help(CLI::App& app);

// Throws InvalidInput if `path` is empty, that is, if neither -o nor its older spelling was given. `example`
// is a file that the message names.
void require_output(const std::string& path, const std::string& example);

}  // namespace cp::cli
