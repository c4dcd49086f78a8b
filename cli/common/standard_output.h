// What a command printed has arrived, or the command has failed.
#pragma once

#include <functional>
#include <string_view>

namespace cp::cli {

// Calls main(), whose exit code it returns once all that was printed is written. Where standard output cannot
// be written (a full disk, /dev/full, a closed descriptor) it says so on standard error and returns the code
// of invalid input, or main()'s own where that is already one of a failure. Of exceptions it takes those
// alone that a print throws.
int finish_output(std::string_view program, const std::function<int()>& main);

}  // namespace cp::cli
