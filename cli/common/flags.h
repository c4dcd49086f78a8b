// The flags of a command: what its file says of CLI11, compiled once in flags.cc. CLI11 is all headers, and
// the functions of a unit that includes them are three quarters of what it takes to compile.
//
//   FlagSet app = cpsim.add_subcommand("estimate", "The time of one attention on a cluster");
//   app.add_option("--cluster", flags->cluster, "A preset's name, or a file").type_name("NAME|FILE.txtpb");
//   app.add_flag("--json", flags->json, "Print JSON");
//
// Both classes are names for what the program's CLI::App owns, and may be copied. What a flag sets has to
// outlive the parsing.
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

  Flag type_name(const std::string& text) const;  // of its value, in --help
  Flag group(const std::string& text) const;      // under which --help lists it; "": hidden
  Flag required() const;
  Flag expected(int values) const;   // so many words
  Flag one_value_each_time() const;  // the flag may come again
  Flag needs(Flag other) const;      // to be given too
  std::size_t count() const;         // how often it was given

 private:
  CLI::Option* option_;
};

class FlagSet {
 public:
  FlagSet(CLI::App& app) : app_(&app) {}  // NOLINT(google-explicit-constructor): a name for it

  // A flag with a value, or (a name without dashes) a word.
  Flag add_option(const std::string& name, std::string& value, const std::string& help = "") const;
  Flag add_option(const std::string& name, std::optional<std::string>& value, const std::string& help) const;
  Flag add_option(const std::string& name, std::vector<std::string>& values, const std::string& help) const;
  // set(text) is called while the command line is parsed.
  Flag add_option(const std::string& name, const std::function<void(const std::string&)>& set,
                  const std::string& help) const;
  Flag add_list(const std::string& name, const std::function<void(const std::vector<std::string>&)>& set,
                const std::string& help) const;

  // "-o, --output": the file that the command writes, spelled alike in all commands. `older` is what it was
  // called before; it still works, but --help does not list it.
  Flag add_output(std::string& path, const std::string& type, const std::string& help,
                  const std::string& older = "--out") const;

  Flag add_flag(const std::string& name, bool& value, const std::string& help = "") const;
  Flag add_flag(const std::string& name, std::string& value,
                const std::string& help) const;  // "--name{without}"
  Flag add_flag(const std::string& name, const std::function<void()>& set, const std::string& help) const;

  FlagSet add_subcommand(const std::string& name, const std::string& help) const;
  void require_subcommand() const;
  void footer(const std::string& text) const;
  bool parsed() const;

 private:
  CLI::App* app_;
};

// A flag with a value; set(text) is called while the command line is parsed.
inline Flag add_value(FlagSet app, const std::string& flag, const std::string& type, const std::string& help,
                      const std::function<void(const std::string&)>& set) {
  return app.add_option(flag, set, help).type_name(type);
}

// A flag for a whole number from 1 on.
inline Flag add_count(FlagSet app, const std::string& flag, int& value, const std::string& help) {
  return add_value(app, flag, "N", help, [&value, flag](const std::string& text) {
    value = static_cast<int>(parse_whole(flag, text, 1, std::numeric_limits<int>::max()));
  });
}

// Lets --help of the program, and of the commands that are added to it afterwards, break what it says of
// flags and commands into lines of at most kHelpColumns (exit_codes.h).
void wrap_help(CLI::App& app);

// Throws InvalidInput when neither -o nor an older spelling of it was given; `example`: a file that it could
// be.
void require_output(const std::string& path, const std::string& example);

}  // namespace cp::cli
