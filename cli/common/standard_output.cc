#include "cli/common/standard_output.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <string>
#include <system_error>

#include <fmt/format.h>

#include "cli/common/exit_codes.h"

namespace cp::cli {

int finish_output(std::string_view program, const std::function<int()>& main) {
  int code = 0;
  std::string reason;
  try {
    code = main();
  } catch (const std::system_error& error) {
    if (std::ferror(stdout) == 0) throw;
    reason = std::strerror(error.code().value());
  }
  std::cout.flush();  // --help is printed there
  errno = 0;
  const bool lost = std::fflush(stdout) != 0 || std::ferror(stdout) != 0 || !std::cout || !reason.empty();
  if (!lost) return code;
  // What an earlier flush lost has no reason any more.
  if (reason.empty()) reason = errno != 0 ? std::strerror(errno) : "an earlier part of it was lost";
  fmt::print(stderr, "{}: cannot write standard output: {}; what it was to hold is not complete\n", program,
             reason);
  return code != 0 ? code : exit_code(ErrorKind::invalid_input);
}

}  // namespace cp::cli
