#include "traces/tokens/tokenizer.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <rapidcheck/gtest.h>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "tests/support/any_case.h"
#include "tests/support/messages.h"
#include "traces/read_text.h"
#include "traces/tokens/token_files.h"

namespace cp {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;

// Tokenizers of twelve kinds, and the tokens that Hugging Face's tokenizers make of texts
// (scripts/make_tokenizer_cases.py).
const json& cases() {
  static const json kAll = json::parse(read_text_file("tests/traces/tokenizers.json", "cases"));
  return kAll;
}

const json& kind(const std::string& name) {
  for (const json& each : cases().at("kinds")) {
    if (each.at("name") == name) return each;
  }
  throw InvalidInput(str("no kind ", name));
}

json file_of(const json& kind) {
  json file = kind.at("sections");
  file["model"] = cases().at("models").at(kind.at("model").get<std::string>());
  file["model"]["type"] = "BPE";
  file["model"].update(kind.at("options"));
  return file;
}

Tokenizer made(const json& file) { return {file.dump(), "tokenizer.json"}; }

TEST(Tokenizer, MakesTheTokensOfHuggingFaces) {
  const auto texts = cases().at("texts").get<std::vector<std::string>>();
  for (const json& kind : cases().at("kinds")) {
    Tokenizer tokenizer = made(file_of(kind));
    for (std::size_t i = 0; i < texts.size(); ++i) {
      SCOPED_TRACE(str(kind.at("name").get<std::string>(), ": \"", texts[i], "\""));
      const auto expected = kind.at("tokens").at(i).get<std::vector<std::int32_t>>();
      EXPECT_EQ(tokenizer.encode(texts[i]), expected);
      EXPECT_EQ(tokenizer.encode(texts[i]), expected) << "with the words that it has kept";
    }
  }
}

// Characters of one to four bytes, of each class that the patterns ask for, and what is cut out of a text.
rc::Gen<std::string> any_text() {
  const std::vector<std::string> parts = {" ",      "  ", "\n",   "\r\n",          "\t",         "a",
                                          "the",    "Z",  "'s",   "'LL",           "7",          "1234",
                                          ".",      "!?", "é",    "e\u0301",       "ſ",          "Ж",
                                          "ع",      "क्",  "漢字", "\u00a0",        "\u2028",     "\u3000",
                                          "ﬁ",      "½",  "€",    "👩\u200d👧",      "\U0010ffff", "▁",
                                          "<0x41>", "_",  "~",    "<|endoftext|>", "<|end",      "\u180e"};
  return rc::gen::map(rc::gen::container<std::vector<std::string>>(rc::gen::elementOf(parts)),
                      [](const std::vector<std::string>& words) { return join(words, ""); });
}

RC_GTEST_PROP(Tokenizer, ATextComesBackFromItsTokens, ()) {
  const auto name = pick("kind", rc::gen::elementOf(std::vector<std::string>{"gpt2", "gpt-oss", "deepseek"}));
  static std::map<std::string, Tokenizer> tokenizers;
  if (!tokenizers.contains(name)) tokenizers.emplace(name, made(file_of(kind(name))));
  Tokenizer& tokenizer = tokenizers.at(name);
  const auto text = pick("text", any_text());
  RC_ASSERT(tokenizer.decode(tokenizer.encode(text)) == text);
}

// A word that is too long to be kept is merged in parts, and short ones are kept: both give what merging the
// whole gives, here by the tokens of a text that stands alone.
RC_GTEST_PROP(Tokenizer, PartsOfALongTextAreMergedAsTheWhole, ()) {
  static const json kFile = [] {
    json with_blanks = file_of(kind("gemma"));
    json &vocabulary = with_blanks["model"]["vocab"], &merges = with_blanks["model"]["merges"];
    // Tokens with a blank within them, across which no cut may go.
    for (const auto& [left, right] : {std::pair("▁", "▁"), std::pair("s", "▁"), std::pair("s▁", "▁")}) {
      vocabulary[str(left, right)] = 5000 + merges.size();
      merges.push_back({left, right});
    }
    return with_blanks;
  }();
  static Tokenizer by_parts = made(kFile);
  // A token that has ">" before a blank leaves no place for a cut.
  static Tokenizer whole = [] {
    json other = kFile;
    other["model"]["vocab"][">▁"] = 9000;
    return made(other);
  }();
  const auto words =
      pick("words", rc::gen::container<std::vector<std::string>>(rc::gen::elementOf(
                        std::vector<std::string>{"the", "of", "ranks", " ", "  ", "é", "漢", "plan", "x"})));
  const std::string text = str(std::string(40, 'a'), " ", join(words, " "), " ", std::string(40, 'b'));
  RC_ASSERT(by_parts.encode(text) == whole.encode(text));
}

TEST(Tokenizer, TellsItsTokens) {
  const Tokenizer tokenizer = made(file_of(kind("qwen3")));
  EXPECT_EQ(tokenizer.vocabulary(), 559);
  EXPECT_EQ(tokenizer.token("<|endoftext|>"), 557);
  EXPECT_EQ(tokenizer.token("<|none|>"), std::nullopt);
  EXPECT_THAT(message_of([&] { tokenizer.decode(std::vector<std::int32_t>{9999}); }),
              HasSubstr("token 9999 is none of the tokenizer's, which has 559"));
}

// What SentencePiece's kinds write of a text: with its blank before it, and bytes of what is no token.
TEST(Tokenizer, DecodesBlanksAndBytes) {
  Tokenizer tokenizer = made(file_of(kind("llama2")));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("the 漢字 of é")), "<s> the 漢字 of é");
}

TEST(Tokenizer, RefusesWhatItDoesNotKnow) {
  const auto refused = [](const std::string& kind_name, const std::string& patch) {
    json file = file_of(kind(kind_name));
    file.merge_patch(json::parse(patch));
    return message_of([&] { made(file); });
  };
  EXPECT_THAT(refused("gpt2", R"({"model": {"type": "Unigram"}})"),
              HasSubstr("tokenizer.json: the model \"Unigram\" is not known; known are BPE"));
  EXPECT_THAT(
      refused("gpt2", R"({"normalizer": {"type": "Lowercase"}})"),
      HasSubstr("the normalizer \"Lowercase\" is not known; known are NFC, NFD, NFKC, NFKD, Prepend"));
  EXPECT_THAT(refused("gpt2", R"({"pre_tokenizer": {"type": "BertPreTokenizer"}})"),
              HasSubstr("the pre_tokenizer \"BertPreTokenizer\" is not known; known are Split, ByteLevel"));
  EXPECT_THAT(refused("gpt2", R"({"post_processor": {"type": "BertProcessing"}})"),
              HasSubstr("the post_processor \"BertProcessing\" is not known; known are TemplateProcessing"));
  EXPECT_THAT(refused("gpt2", R"({"model": {"dropout": 0.1}})"), HasSubstr("the model has dropout"));
  EXPECT_THAT(refused("gpt2", R"({"model": {"end_of_word_suffix": "</w>"}})"),
              HasSubstr("the end_of_word_suffix \"</w>\" is not known; known are none: null"));
  EXPECT_THAT(refused("gpt2", R"({"model": {"merges": ["q z"]}})"),
              HasSubstr("merge 0 of \"q\" and \"z\" needs \"qz\", which is no token of the vocabulary"));
  EXPECT_THAT(refused("gpt2", R"({"model": {"merges": ["qz"]}})"),
              HasSubstr("merge 0 \"qz\" is no two texts with a space between"));
  EXPECT_THAT(refused("gpt2", R"({"model": {"vocab": null}})"),
              HasSubstr("tokenizer.json is no tokenizer of Hugging Face's"));
  EXPECT_THAT(refused("gpt2", R"({"added_tokens": [{"id": 0, "content": "x", "single_word": true}]})"),
              HasSubstr("the added token \"x\" has single_word, which is not known"));
}

TEST(Tokenizer, RefusesPatternsThatPcreReadsOtherwise) {
  const auto refused = [](const std::string& regex) {
    json file = file_of(kind("gpt2"));
    file["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}};
    return message_of([&] { made(file); });
  };
  EXPECT_THAT(refused("\\w+"), HasSubstr("\\w+ has \\w, which PCRE2 reads otherwise than Oniguruma, Hugging "
                                         "Face's; use [\\p{L}\\p{M}\\p{N}_]"));
  EXPECT_THAT(refused("[a-z&&[^b]]"), HasSubstr("has &&"));
  EXPECT_THAT(refused("\\p{N}{1,3}+"), HasSubstr("has }+"));
  EXPECT_THAT(refused("[a[bc]]"), HasSubstr("has a class within a class"));
  EXPECT_THAT(refused("(a"), HasSubstr("the regular expression (a is none for PCRE2: "));
  json file = file_of(kind("gpt2"));
  file["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", "\\p{L}+"}}}, {"behavior", "Isolated"}};
  EXPECT_NO_THROW(made(file)) << "the brace of a class";
}

TEST(Tokenizer, RefusesBytesThatAreNoText) {
  Tokenizer tokenizer = made(file_of(kind("gpt2")));
  for (const char* const bad : {"\xff", "\xc3", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xc0\xaf"})
    EXPECT_THAT(message_of([&] { tokenizer.encode(str("ok ", bad)); }),
                HasSubstr("byte 3 of the text is no UTF-8, which a tokenizer reads; give the text in UTF-8"));
}

TEST(TokenFiles, AreATokenizersTokens) {
  const std::string folder = ::testing::TempDir() + "cp_token_files";
  std::filesystem::create_directories(folder);
  const std::string path = folder + "/text.txt", ids = folder + "/ids.u16";
  std::ofstream(folder + "/tokenizer.json") << file_of(kind("llama3")).dump();
  std::ofstream(path) << "the layout";
  std::ofstream(ids, std::ios::binary) << std::string("\x05\x00\x07\x01", 4);
  Tokenizer tokenizer(folder);
  const std::vector<std::int32_t> tokens = tokenizer.encode("the layout");
  const TokenFiles text(std::vector<std::string>{path, ids, path}, &tokenizer);
  const std::int64_t count = std::ssize(tokens);
  ASSERT_EQ(text.size(), 2 * count + 2);
  EXPECT_EQ(text.read(0, count), tokens);
  EXPECT_THAT(text.read(count - 1, 4), ElementsAre(tokens.back(), 5, 263, tokens.front()));
  EXPECT_EQ(text.read(count + 2, count), tokens);
  EXPECT_THAT(message_of([&] { text.require_below(557); }), HasSubstr("token 0 of the text is 557"));
  text.require_below(558);

  std::ofstream(path) << "no \xff";
  EXPECT_THAT(message_of([&] { TokenFiles(std::vector<std::string>{path}, &tokenizer); }),
              HasSubstr(path + ": byte 3 of the text is no UTF-8"));
  EXPECT_THAT(message_of([&] { Tokenizer(folder + "/none"); }), HasSubstr("/none"));
}

// Where documents begin in what is read of a text in two parts, whatever the parts are.
std::vector<std::int64_t> begins_of(const TokenFiles& text) {
  std::vector<std::int64_t> all = text.document_begins(0, text.size());
  for (std::int64_t cut = 0; cut <= text.size(); ++cut) {
    std::vector<std::int64_t> parts = text.document_begins(0, cut);
    const std::vector<std::int64_t> rest = text.document_begins(cut, text.size() - cut);
    parts.insert(parts.end(), rest.begin(), rest.end());
    EXPECT_EQ(parts, all) << "cut at " << cut;
  }
  return all;
}

TEST(TokenFiles, TellDocumentsApart) {
  const std::vector<std::string_view> texts = {"a\n\nb\n\n\nc\r\n\r\nd\n", "\n\ne"};
  const auto begins = [&](const char* rule) {
    return begins_of(TokenFiles(texts, nullptr, parse_document_rule(rule, nullptr)));
  };
  EXPECT_THAT(begins(""), ElementsAre());
  EXPECT_THAT(begins("file"), ElementsAre(0, 14));
  EXPECT_THAT(begins("blank_line"), ElementsAre(0, 3, 7, 12, 14, 16));
  EXPECT_THAT(begins("token:98"), ElementsAre(0, 4, 14)) << "b";
}

TEST(TokenFiles, TellDocumentsOfATokenizerApart) {
  Tokenizer tokenizer = made(file_of(kind("llama3")));
  const std::string text = "the layout\n\nof the ranks<|endoftext|>the\n";
  const std::vector<std::string_view> texts = {text, text};
  const auto size = [&](std::string_view of) { return std::ssize(tokenizer.encode(of)); };
  const std::int64_t whole = size(text), first = size("the layout\n\n"),
                     second = size("of the ranks<|endoftext|>the\n");
  const auto begins = [&](const char* rule) {
    return begins_of(TokenFiles(texts, &tokenizer, parse_document_rule(rule, &tokenizer)));
  };
  EXPECT_THAT(begins("file"), ElementsAre(0, whole));
  // Each paragraph is a text of its own: it begins with the token that the tokenizer puts before one.
  EXPECT_THAT(begins("blank_line"), ElementsAre(0, first, first + second, 2 * first + second));
  const std::int64_t end = size("the layout\n\nof the ranks<|endoftext|>");
  // The token that stands before the text is the same one: it ends a document of its own.
  EXPECT_THAT(begins("token:<|endoftext|>"), ElementsAre(0, 1, end, whole, whole + 1, whole + end));
  EXPECT_EQ(parse_document_rule("token:557", &tokenizer).token, 557);
}

TEST(TokenFiles, RefuseRulesThatTellNothing) {
  EXPECT_THAT(message_of([&] { parse_document_rule("page", nullptr); }),
              HasSubstr("documents \"page\" is not known; use file, blank_line, or token: and the token"));
  EXPECT_THAT(message_of([&] { parse_document_rule("token:<end>", nullptr); }),
              HasSubstr("<end> is no token of the text, which has no tokenizer; use its number"));
  const std::string ids = ::testing::TempDir() + "cp_ids.u16";
  std::ofstream(ids, std::ios::binary) << std::string("\x05\x00\x07\x01", 4);
  EXPECT_THAT(message_of([&] {
                TokenFiles(std::vector<std::string>{ids}, nullptr,
                           parse_document_rule("blank_line", nullptr));
              }),
              HasSubstr(ids + " has tokens, among which no blank line is seen"));
}

}  // namespace
}  // namespace cp
