// The tokens of files, for scripts/compare_tokenizer.py: tokenize TOKENIZER FILE... writes those of a file on
// one line, behind the seconds that it took.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "shared/base/error.h"
#include "traces/read_text.h"
#include "traces/tokens/tokenizer.h"

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "usage: tokenize TOKENIZER FILE...\n");
    return 2;
  }
  try {
    cp::Tokenizer tokenizer{std::string(argv[1])};
    for (int file = 2; file < argc; ++file) {
      const std::string text = cp::read_text_file(argv[file], "text");
      const auto begin = std::chrono::steady_clock::now();
      const std::vector<std::int32_t> tokens = tokenizer.encode(text);
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
      fmt::print("{:.6f} {}\n", seconds.count(), fmt::join(tokens, " "));
    }
  } catch (const cp::Error& error) {
    fmt::print(stderr, "tokenize: {}\n", error.what());
    return 2;
  }
  return 0;
}
