#include "traces/tokens/tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <nlohmann/json.hpp>

#include "shared/base/error.h"
#include "shared/base/index.h"
#include "shared/base/text.h"
#include "traces/read_text.h"
#include "traces/tokens/added_tokens.h"
#include "traces/tokens/byte_pairs.h"
#include "traces/tokens/tokenizer_steps.h"
#include "traces/tokens/unicode.h"

namespace cp {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

std::string file_of(const std::string& path) {
  std::error_code none;
  return fs::is_directory(path, none) ? (fs::path(path) / "tokenizer.json").string() : path;
}

// A field that may be missing or null.
const Json& member(const Json& object, const char* key) {
  static const Json kNone;
  const auto found = object.find(key);
  return found == object.end() ? kNone : *found;
}

template <class Value>
Value value_or(const Json& object, const char* key, Value otherwise) {
  const Json& value = member(object, key);
  return value.is_null() ? otherwise : value.get<Value>();
}

[[noreturn]] void refuse(const std::string& what, const std::string& is, const char* known) {
  throw InvalidInput(str(what, " \"", is, "\" is not known; known are ", known));
}

TextPattern pattern_of(const Json& json) {
  if (json.is_string()) return TextPattern::literal(json.get<std::string>());
  if (json.contains("String")) return TextPattern::literal(json.at("String").get<std::string>());
  return TextPattern(json.at("Regex").get<std::string>());
}

void read_normalizer(const Json& json, std::vector<Normalizer>& to) {
  if (json.is_null()) return;
  const auto type = json.at("type").get<std::string>();
  constexpr std::pair<const char*, NormalForm> kForms[] = {{"NFC", NormalForm::nfc},
                                                           {"NFD", NormalForm::nfd},
                                                           {"NFKC", NormalForm::nfkc},
                                                           {"NFKD", NormalForm::nfkd}};
  for (const auto& [name, form] : kForms) {
    if (type == name) return to.emplace_back(form), void();
  }
  if (type == "Sequence") {
    for (const Json& part : json.at("normalizers")) read_normalizer(part, to);
  } else if (type == "Prepend") {
    to.emplace_back(Prepend{json.at("prepend").get<std::string>()});
  } else if (type == "Replace") {
    to.emplace_back(Replace{pattern_of(json.at("pattern")), json.at("content").get<std::string>()});
  } else {
    refuse("the normalizer", type, "NFC, NFD, NFKC, NFKD, Prepend, Replace and Sequence");
  }
}

SplitBehavior behavior_of(const std::string& name) {
  constexpr std::pair<const char*, SplitBehavior> kBehaviors[] = {
      {"Removed", SplitBehavior::removed},
      {"Isolated", SplitBehavior::isolated},
      {"MergedWithPrevious", SplitBehavior::merged_with_previous},
      {"MergedWithNext", SplitBehavior::merged_with_next},
      {"Contiguous", SplitBehavior::contiguous}};
  for (const auto& [known, behavior] : kBehaviors) {
    if (name == known) return behavior;
  }
  refuse("the behavior", name, "Removed, Isolated, MergedWithPrevious, MergedWithNext and Contiguous");
}

Metaspace metaspace_of(const Json& json) {
  Metaspace spaces;
  spaces.replacement = json.at("replacement").get<std::string>();
  const bool adds = value_or(json, "add_prefix_space", true);  // of older files
  const auto scheme = value_or<std::string>(json, "prepend_scheme", adds ? "always" : "never");
  if (scheme == "always")
    spaces.prepends = Metaspace::Prepends::always;
  else if (scheme == "first")
    spaces.prepends = Metaspace::Prepends::at_begin;
  else if (scheme == "never")
    spaces.prepends = Metaspace::Prepends::never;
  else
    refuse("the prepend_scheme", scheme, "always, first and never");
  if (value_or(json, "split", true))
    spaces.words = Split{TextPattern::literal(spaces.replacement), SplitBehavior::merged_with_next, false};
  return spaces;
}

void read_pre_tokenizer(const Json& json, std::vector<PreTokenizer>& to) {
  if (json.is_null()) return;
  const auto type = json.at("type").get<std::string>();
  if (type == "Sequence") {
    for (const Json& part : json.at("pretokenizers")) read_pre_tokenizer(part, to);
  } else if (type == "Split") {
    to.emplace_back(Split{pattern_of(json.at("pattern")), behavior_of(json.at("behavior").get<std::string>()),
                          value_or(json, "invert", false)});
  } else if (type == "ByteLevel") {
    ByteLevel bytes;
    bytes.add_prefix_space = value_or(json, "add_prefix_space", true);
    if (value_or(json, "use_regex", true)) bytes.words = words_of_gpt2();
    to.emplace_back(std::move(bytes));
  } else if (type == "Metaspace") {
    to.emplace_back(metaspace_of(json));
  } else if (type == "Digits") {
    to.emplace_back(Split{
        TextPattern("\\p{N}"),
        value_or(json, "individual_digits", false) ? SplitBehavior::isolated : SplitBehavior::contiguous,
        false});
  } else if (type == "Punctuation") {
    // Of ASCII the symbols too.
    to.emplace_back(Split{TextPattern(R"([\p{P}$+<=>^`|~])"),
                          behavior_of(value_or<std::string>(json, "behavior", "Isolated")), false});
  } else {
    refuse("the pre_tokenizer", type, "Split, ByteLevel, Metaspace, Digits, Punctuation and Sequence");
  }
}

struct Ends {
  std::vector<std::int32_t> before, behind;
};

void read_template(const Json& json, Ends& ends) {
  std::vector<std::int32_t> before, behind;
  bool is_behind = false;
  for (const Json& part : json.at("single")) {
    if (part.contains("Sequence")) {
      is_behind = true;
      continue;
    }
    const auto name = part.at("SpecialToken").at("id").get<std::string>();
    const auto ids = json.at("special_tokens").at(name).at("ids").get<std::vector<std::int32_t>>();
    std::vector<std::int32_t>& side = is_behind ? behind : before;
    side.insert(side.end(), ids.begin(), ids.end());
  }
  ends.before.insert(ends.before.begin(), before.begin(), before.end());
  ends.behind.insert(ends.behind.end(), behind.begin(), behind.end());
}

void read_post_processor(const Json& json, Ends& ends) {
  if (json.is_null()) return;
  const auto type = json.at("type").get<std::string>();
  if (type == "Sequence") {
    for (const Json& part : json.at("processors")) read_post_processor(part, ends);
  } else if (type == "TemplateProcessing") {
    read_template(json, ends);
  } else if (type != "ByteLevel") {  // which changes offsets alone
    refuse("the post_processor", type, "TemplateProcessing, ByteLevel and Sequence");
  }
}

BytePairs read_model(const Json& json) {
  // Files of before 2020 do not say it.
  const auto type = value_or<std::string>(json, "type", "BPE");
  if (type != "BPE") refuse("the model", type, "BPE, which most language models have");
  if (value_or(json, "dropout", 0.0) != 0)
    throw InvalidInput("the model has dropout, with which a text has other tokens each time; set it to null");
  for (const char* const key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const auto text = value_or<std::string>(json, key, "");
    if (!text.empty()) refuse(str("the ", key), text, "none: null");
  }
  BytePairs::Vocabulary vocabulary;
  for (const auto& [text, token] : json.at("vocab").items())
    vocabulary.emplace(text, token.get<std::int32_t>());
  std::vector<std::pair<std::string, std::string>> merges;
  for (const Json& merge : json.at("merges")) {
    if (merge.is_array()) {
      merges.emplace_back(merge.at(0).get<std::string>(), merge.at(1).get<std::string>());
      continue;
    }
    const auto text = merge.get<std::string>();
    const std::size_t space = text.find(' ');
    if (space == text.npos || text.find(' ', space + 1) != text.npos)
      throw InvalidInput(
          str("merge ", merges.size(), " \"", text, "\" is no two texts with a space between"));
    merges.emplace_back(text.substr(0, space), text.substr(space + 1));
  }
  BytePairOptions options;
  options.ignore_merges = value_or(json, "ignore_merges", false);
  options.byte_fallback = value_or(json, "byte_fallback", false);
  options.fuse_unknown = value_or(json, "fuse_unk", false);
  const auto unknown = value_or<std::string>(json, "unk_token", "");
  if (!unknown.empty()) {
    const auto found = vocabulary.find(unknown);
    if (found == vocabulary.end())
      throw InvalidInput(str("the unk_token \"", unknown, "\" is no token of the vocabulary"));
    options.unknown = found->second;
  }
  return {std::move(vocabulary), merges, options};
}

// The byte of a token such as <0x0A>.
std::optional<char> byte_of(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text.back() != '>') return std::nullopt;
  int value = 0;
  for (const char digit : text.substr(3, 2)) {
    const std::size_t at = std::string_view("0123456789ABCDEF").find(digit);
    if (at == std::string_view::npos) return std::nullopt;
    value = value * 16 + static_cast<int>(at);
  }
  return static_cast<char>(value);
}

}  // namespace

struct Tokenizer::Parts {
  explicit Parts(const Json& json) : model(read_model(json.at("model"))) {
    read_normalizer(member(json, "normalizer"), normalizers);
    read_pre_tokenizer(member(json, "pre_tokenizer"), steps);
    read_post_processor(member(json, "post_processor"), ends);
    for (const PreTokenizer& step : steps) {
      is_of_bytes |= std::holds_alternative<ByteLevel>(step);
      if (const auto* const spaces = std::get_if<Metaspace>(&step))
        blanks = Replace{TextPattern::literal(spaces->replacement), " "};
    }
    for (const auto& [text, token] : model.vocabulary()) texts.emplace(token, text);
    const Json& tokens = member(json, "added_tokens");
    for (const Json& token : tokens) add(token);
    for (const auto& [token, text] : texts) vocabulary = std::max(vocabulary, std::int64_t{token} + 1);
  }

  void add(const Json& json) {
    AddedToken token{json.at("id").get<std::int32_t>(), json.at("content").get<std::string>(),
                     value_or(json, "lstrip", false), value_or(json, "rstrip", false)};
    if (value_or(json, "single_word", false))
      throw InvalidInput(str("the added token \"", token.content,
                             "\" has single_word, which is not known; known are lstrip, rstrip, normalized "
                             "and special"));
    texts.insert_or_assign(token.id, token.content), ids.insert_or_assign(token.content, token.id);
    added.insert(token.id);
    const bool is_normalized = value_or(json, "normalized", !value_or(json, "special", false));
    if (is_normalized) token.content = normalize(token.content);
    (is_normalized ? behind_normalizer : before_normalizer).add(std::move(token));
  }

  std::string normalize(std::string_view text) const {
    std::string result(text);
    for (const Normalizer& normalizer : normalizers) result = apply_normalizer(normalizer, result);
    return result;
  }

  BytePairs model;
  std::vector<Normalizer> normalizers;
  std::vector<PreTokenizer> steps;
  Ends ends;
  AddedTokens before_normalizer, behind_normalizer;
  std::unordered_map<std::int32_t, std::string> texts;  // of all tokens
  std::unordered_map<std::string, std::int32_t> ids;    // of added tokens
  std::unordered_set<std::int32_t> added;
  std::int64_t vocabulary = 0;
  bool is_of_bytes = false;
  Normalizer blanks = Replace{TextPattern::literal("\u2581"), " "};  // back from SentencePiece's
};

Tokenizer::Tokenizer(const std::string& path)
    : Tokenizer(read_text_file(file_of(path), "tokenizer"), file_of(path)) {}

Tokenizer::Tokenizer(std::string_view json, const std::string& origin) {
  try {
    parts_ = std::make_unique<Parts>(Json::parse(json));
  } catch (const Json::exception& error) {
    throw InvalidInput(str(origin, " is no tokenizer of Hugging Face's: ", error.what(),
                           "; use a tokenizer.json, which their save_pretrained() writes"));
  } catch (const InvalidInput& error) {
    throw InvalidInput(str(origin, ": ", error.message()));
  }
}

Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

std::vector<std::int32_t> Tokenizer::encode(std::string_view text) {
  if (const std::size_t at = first_that_is_no_utf8(text); at < text.size())
    throw InvalidInput(str("byte ", at,
                           " of the text is no UTF-8, which a tokenizer reads; give the text in "
                           "UTF-8, or train on bytes, without a tokenizer"));
  Parts& parts = *parts_;
  std::vector<std::int32_t> tokens = parts.ends.before;
  const auto add_token = [&](std::int32_t token) { tokens.push_back(token); };
  const auto add_word = [&](std::string_view word) { parts.model.encode(word, tokens); };
  const auto add_piece = [&](std::string_view raw) {
    const bool is_begin = raw.data() == text.data();
    std::string changed;
    if (!parts.normalizers.empty()) raw = changed = parts.normalize(raw);
    parts.behind_normalizer.cut(raw, add_token, [&](std::string_view piece) {
      cut_words(parts.steps, piece, is_begin && piece.data() == raw.data(), add_word);
    });
  };
  parts.before_normalizer.cut(text, add_token, add_piece);
  tokens.insert(tokens.end(), parts.ends.behind.begin(), parts.ends.behind.end());
  return tokens;
}

std::string Tokenizer::decode(std::span<const std::int32_t> tokens) const {
  std::string result;
  for (const std::int32_t token : tokens) {
    const auto found = parts_->texts.find(token);
    if (found == parts_->texts.end())
      throw InvalidInput(str("token ", token, " is none of the tokenizer's, which has ", vocabulary()));
    const std::string& text = found->second;
    if (parts_->added.contains(token)) {
      result += text;
    } else if (parts_->is_of_bytes) {
      const std::optional<std::string> bytes = bytes_of_visible(text);
      result += bytes ? *bytes : text;
    } else if (const std::optional<char> byte = byte_of(text)) {
      result += *byte;
    } else {
      result += apply_normalizer(parts_->blanks, text);
    }
  }
  return result;
}

std::int64_t Tokenizer::vocabulary() const { return parts_->vocabulary; }

std::optional<std::int32_t> Tokenizer::token(std::string_view text) const {
  if (const auto added = parts_->ids.find(std::string(text)); added != parts_->ids.end())
    return added->second;
  const auto& vocabulary = parts_->model.vocabulary();
  const auto found = vocabulary.find(text);
  return found == vocabulary.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace cp
