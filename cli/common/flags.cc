#include "cli/common/flags.h"

#include <algorithm>
#include <memory>
#include <sstream>
#include <string_view>

#include <CLI/CLI.hpp>

#include "cli/common/exit_codes.h"
#include "shared/base/error.h"

namespace cp::cli {
namespace {

// CLI11 indents the lines of a text, but makes none.
std::string in_lines(std::string_view text, std::size_t columns) {
  std::string out;
  std::size_t line = 0;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(text.size(), word.size() + 1));
    if (!out.empty()) {
      const bool fits = line + 1 + word.size() <= columns;
      out += fits ? ' ' : '\n';
      line = fits ? line + 1 : 0;
    }
    out += word;
    line += word.size();
  }
  return out;
}

class WrappedHelp : public CLI::Formatter {
 public:
  std::string make_option_desc(const CLI::Option* option) const override {
    return in_lines(option->get_description(), kHelpColumns - get_column_width());
  }
  std::string make_subcommand(const CLI::App* command) const override {
    std::ostringstream out;
    CLI::detail::format_help(out, command->get_name(),
                             in_lines(command->get_description(), kHelpColumns - get_column_width()),
                             get_column_width());
    return out.str();
  }
};

}  // namespace

Flag Flag::type_name(const std::string& text) const { return Flag(option_->type_name(text)); }
Flag Flag::group(const std::string& text) const { return Flag(option_->group(text)); }
Flag Flag::required() const { return Flag(option_->required()); }
Flag Flag::expected(int values) const { return Flag(option_->expected(values)); }
Flag Flag::one_value_each_time() const { return Flag(option_->allow_extra_args(false)); }
Flag Flag::needs(Flag other) const { return Flag(option_->needs(other.option_)); }
std::size_t Flag::count() const { return option_->count(); }

Flag FlagSet::add_option(const std::string& name, std::string& value, const std::string& help) const {
  return Flag(app_->add_option(name, value, help));
}
Flag FlagSet::add_option(const std::string& name, std::optional<std::string>& value,
                         const std::string& help) const {
  return Flag(app_->add_option(name, value, help));
}
Flag FlagSet::add_option(const std::string& name, std::vector<std::string>& values,
                         const std::string& help) const {
  return Flag(app_->add_option(name, values, help));
}
Flag FlagSet::add_option(const std::string& name, const std::function<void(const std::string&)>& set,
                         const std::string& help) const {
  return Flag(app_->add_option_function<std::string>(name, set, help));
}
Flag FlagSet::add_list(const std::string& name,
                       const std::function<void(const std::vector<std::string>&)>& set,
                       const std::string& help) const {
  return Flag(app_->add_option_function<std::vector<std::string>>(name, set, help));
}

Flag FlagSet::add_output(std::string& path, const std::string& type, const std::string& help,
                         const std::string& older) const {
  CLI::Option* output = app_->add_option("-o,--output", path, help)->type_name(type);
  if (!older.empty()) app_->add_option(older, path)->group("")->excludes(output);
  return Flag(output);
}

Flag FlagSet::add_flag(const std::string& name, bool& value, const std::string& help) const {
  return Flag(app_->add_flag(name, value, help));
}
Flag FlagSet::add_flag(const std::string& name, std::string& value, const std::string& help) const {
  return Flag(app_->add_flag(name, value, help));
}
Flag FlagSet::add_flag(const std::string& name, const std::function<void()>& set,
                       const std::string& help) const {
  return Flag(app_->add_flag_callback(name, set, help));
}

FlagSet FlagSet::add_subcommand(const std::string& name, const std::string& help) const {
  return FlagSet(*app_->add_subcommand(name, help));
}
void FlagSet::fallthrough() const { app_->fallthrough(); }

void FlagSet::require_subcommand() const { app_->require_subcommand(1); }
void FlagSet::footer(const std::string& text) const { app_->footer(text); }
bool FlagSet::parsed() const { return app_->parsed(); }

void wrap_help(CLI::App& app) { app.formatter(std::make_shared<WrappedHelp>()); }

void require_output(const std::string& path, const std::string& example) {
  if (path.empty())
    throw InvalidInput(str("-o is missing; name the file to write, for example -o ", example));
}

}  // namespace cp::cli
