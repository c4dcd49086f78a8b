#include "shared/base/nearest.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <tuple>

#include "shared/base/error.h"

namespace cp {
namespace {

// Chosen: a piece of fewer letters is part of too many names to mean one of them. For example, "cp" is in
// "cprun" and in "cp_degree".
constexpr std::size_t kShortestPart = 3;

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }

std::string lower_case(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  return out;
}

// What stands between separators.
std::vector<std::string> parts_of(std::string_view text) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (is_letter(c)) {
      parts.back() += c;
    } else if (!parts.back().empty()) {
      parts.emplace_back();
    }
  }
  return parts;
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

enum class Likeness { same_letters, contains_word, is_in_word, contains_parts, spelled_alike, far };

struct Fit {
  Likeness likeness;
  std::size_t unmatched;  // letters of the word's parts that the name does not contain
  std::size_t distance;
  bool operator<(const Fit& other) const {
    return std::tie(likeness, unmatched, distance) <
           std::tie(other.likeness, other.unmatched, other.distance);
  }
};

// A word as it was written, and what its names are compared with.
struct Word {
  explicit Word(std::string_view written) : text(lower_case(written)), parts(parts_of(text)) {
    for (const std::string& part : parts) letters += part;
  }
  // Of names whose pieces are short only a beginning counts: "tpp" begins with tp.
  bool is_in(const Word& other) const {
    if (letters.size() >= kShortestPart && other.letters.find(letters) != std::string::npos) return true;
    return letters.size() + 1 >= kShortestPart && other.text.starts_with(text);
  }

  std::string text;
  std::vector<std::string> parts;
  std::string letters;
};

Fit fit_of(const Word& word, const Word& name) {
  const std::size_t distance = edit_distance(word.text, name.text);
  if (!word.letters.empty() && word.letters == name.letters) return {Likeness::same_letters, 0, distance};
  if (word.is_in(name)) return {Likeness::contains_word, 0, distance};
  if (name.is_in(word)) return {Likeness::is_in_word, 0, distance};
  std::size_t matched = 0;
  for (const std::string& part : word.parts) {
    if (part.size() >= kShortestPart && name.letters.find(part) != std::string::npos) matched += part.size();
  }
  if (matched > 0) return {Likeness::contains_parts, word.letters.size() - matched, distance};
  const bool alike = distance * 3 <= std::max(word.text.size(), name.text.size());
  return {alike ? Likeness::spelled_alike : Likeness::far, 0, distance};
}

template <class Names>
std::size_t best_of(std::string_view written, const Names& names, Fit& best) {
  const Word word(written);
  std::size_t place = 0;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const Fit fit = fit_of(word, Word(names[i]));
    if (i == 0 || fit < best) best = fit, place = i;
  }
  return place;
}

}  // namespace

std::string nearest(std::string_view word, const std::vector<std::string>& known) {
  if (known.empty() || word.empty()) return "";
  Fit best{};
  const std::size_t place = best_of(word, known, best);
  return best.likeness == Likeness::far ? "" : known[place];
}

std::string_view nearest_name(std::string_view word, const std::vector<std::string_view>& names) {
  CP_INVARIANT(!names.empty(), "there is no name that ", word, " could be near to");
  Fit best{};
  return names[best_of(word, names, best)];
}

}  // namespace cp
