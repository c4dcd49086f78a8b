#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include <zlib.h>

#include "tests/present/browser.h"

namespace cp::testing {
namespace {

std::uint32_t big_endian(const std::uint8_t* bytes) {
  return std::uint32_t{bytes[0]} << 24 | std::uint32_t{bytes[1]} << 16 | std::uint32_t{bytes[2]} << 8 |
         bytes[3];
}

void require(bool condition, const char* what) {
  if (!condition) throw std::runtime_error(std::string("not a PNG as it should be: ") + what);
}

// The predictor of PNG's filter 4.
int paeth(int left, int up, int up_left) {
  const int estimate = left + up - up_left;
  const int to_left = std::abs(estimate - left), to_up = std::abs(estimate - up);
  const int to_up_left = std::abs(estimate - up_left);
  if (to_left <= to_up && to_left <= to_up_left) return left;
  return to_up <= to_up_left ? up : up_left;
}

// Undoes the filter of one row in place; `above` is the row before, undone, or zeros.
void unfilter(int filter, std::uint8_t* row, const std::uint8_t* above, std::size_t size,
              std::size_t channels) {
  for (std::size_t i = 0; i < size; ++i) {
    const int left = i >= channels ? row[i - channels] : 0;
    const int up = above[i], up_left = i >= channels ? above[i - channels] : 0;
    const int guesses[] = {0, left, up, (left + up) / 2, paeth(left, up, up_left)};
    require(filter >= 0 && filter < 5, "filter");
    row[i] = static_cast<std::uint8_t>(row[i] + guesses[filter]);
  }
}

}  // namespace

// https://www.w3.org/TR/png/
Picture read_png(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  std::vector<std::uint8_t> bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  require(bytes.size() > 8 && std::memcmp(bytes.data(), "\x89PNG\r\n\x1a\n", 8) == 0, "signature");
  Picture picture;
  std::size_t channels = 0;
  std::vector<std::uint8_t> packed;
  for (std::size_t at = 8; at + 12 <= bytes.size();) {
    const std::size_t size = big_endian(&bytes[at]);
    const std::string type(reinterpret_cast<const char*>(&bytes[at + 4]), 4);
    const std::uint8_t* data = &bytes[at + 8];
    require(at + 12 + size <= bytes.size(), "length");
    if (type == "IHDR") {
      picture.width = static_cast<int>(big_endian(data));
      picture.height = static_cast<int>(big_endian(data + 4));
      require(data[8] == 8 && (data[9] == 2 || data[9] == 6) && data[12] == 0, "colour type");
      channels = data[9] == 2 ? 3 : 4;
    } else if (type == "IDAT") {
      packed.insert(packed.end(), data, data + size);
    }
    at += 12 + size;
  }
  const std::size_t line = static_cast<std::size_t>(picture.width) * channels;
  std::vector<std::uint8_t> rows((line + 1) * static_cast<std::size_t>(picture.height));
  uLongf length = rows.size();
  require(uncompress(rows.data(), &length, packed.data(), packed.size()) == Z_OK && length == rows.size(),
          "data");
  std::vector<std::uint8_t> zeros(line);
  const std::uint8_t* above = zeros.data();
  for (std::size_t y = 0; y < static_cast<std::size_t>(picture.height); ++y) {
    std::uint8_t* row = rows.data() + y * (line + 1);
    unfilter(row[0], row + 1, above, line, channels);
    above = row + 1;
    for (std::size_t x = 0; x < line; x += channels) {
      picture.pixels.push_back({above[x], above[x + 1], above[x + 2]});
    }
  }
  return picture;
}

std::map<Pixel, std::int64_t> count_colours(const Picture& picture) {
  std::map<Pixel, std::int64_t> counts;
  for (const Pixel& pixel : picture.pixels) ++counts[pixel];
  return counts;
}

}  // namespace cp::testing
