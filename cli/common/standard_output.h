// Makes sure that what a command printed has arrived, or that the command fails.
#pragma once

#include <functional>
#include <string_view>

namespace cp::cli {

// Calls main(), waits until all that it printed is written, and returns its exit code.
//
// Standard output may be impossible to write: the disk is full, the descriptor is closed, or it is /dev/full.
// Then the function says so on standard error. It returns main()'s code if that is already one of a failure,
// and else the code of invalid input. It catches only the std::system_error that a failed print throws; all
// other exceptions of main() pass through.
int finish_output(std::string_view program, const std::function<int()>& main);

}  // namespace cp::cli
