// A headless Chromium that opens a page from a file, without a network.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace cp::testing {

// The path of chromium; nullopt where there is none.
std::optional<std::string> find_browser();

struct Visit {
  int exit_code = -1;
  std::string document;  // as it is when its scripts have run
  std::string console;   // what the page wrote there, and what the browser had to say about it, line by line
  std::string log;       // standard error
};

struct Browser {
  std::string program, folder;  // folder: an existing one, for its profile
  int width = 1280, height = 2000;
  bool dark = false;

  Visit open(const std::string& html_file) const;
  // Writes a PNG.
  Visit picture(const std::string& html_file, const std::string& png_file) const;

 private:
  Visit run(const std::vector<std::string>& arguments) const;
};

using Pixel = std::array<std::uint8_t, 3>;
struct Picture {
  int width = 0, height = 0;
  std::vector<Pixel> pixels;  // row by row
};
// A PNG of 8 bits for a channel, RGB or RGBA, not interlaced: what Chromium writes. Throws std::runtime_error
// for any other.
Picture read_png(const std::string& file);
// Pixels by colour.
std::map<Pixel, std::int64_t> count_colours(const Picture& picture);

}  // namespace cp::testing
