#include "shared/transformer/layer_loops.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/text.h"
#include "tests/support/any_case.h"

namespace cp {
namespace {

using ::testing::ElementsAre;

// "aab" is layers of the kinds 0, 0, 1.
std::vector<int> kinds_of(const std::string& letters) {
  std::vector<int> kinds;
  for (const char letter : letters) kinds.push_back(letter - 'a');
  return kinds;
}

// "4 x aaB": four times a body of three layers, of which the last one is computed again.
std::vector<std::string> text_of(const std::vector<LayerLoop>& loops) {
  std::vector<std::string> texts;
  for (const LayerLoop& loop : loops) {
    std::string body;
    for (const LayerPlace& place : loop.body)
      body += static_cast<char>((place.recomputed ? 'A' : 'a') + place.kind);
    texts.push_back(str(loop.count, " x ", body));
  }
  return texts;
}

// Of three kinds, of which the second one has experts, and the third one no MLP.
const std::vector<LayerParts> kOfKinds = {
    {Mixer::attention, Mlp::dense}, {Mixer::attention, Mlp::experts}, {Mixer::recurrence, Mlp::none}};

std::vector<std::string> forward(const std::string& letters, Recompute recompute = {}) {
  const std::vector<int> kinds = kinds_of(letters);
  return text_of(forward_loops({kinds, kOfKinds}, recompute));
}

constexpr Recompute kFull{Recompute::Kind::full, 1};
Recompute every(int layers) { return {Recompute::Kind::every, layers}; }

TEST(LayerLoops, OfEqualLayersAreOne) {
  EXPECT_THAT(forward("a"), ElementsAre("1 x a"));
  EXPECT_THAT(forward("aaaaa"), ElementsAre("5 x a"));
  EXPECT_THAT(forward("aaaaa", kFull), ElementsAre("5 x A"));
  EXPECT_THAT(forward("aaaaaaaa", every(4)), ElementsAre("2 x aaaA"));
  EXPECT_THAT(forward("aaaaaa", every(4)), ElementsAre("1 x aaaA", "2 x a"));
  EXPECT_THAT(forward("aaaaa", every(2)), ElementsAre("2 x aA", "1 x a"));
}

TEST(LayerLoops, OfAPatternRepeatIt) {
  EXPECT_THAT(forward("abababab"), ElementsAre("4 x ab"));
  EXPECT_THAT(forward("ababababa"), ElementsAre("4 x ab", "1 x a"));
  EXPECT_THAT(forward("aaaaabaaaaabaa"), ElementsAre("2 x aaaaab", "2 x a"));
  EXPECT_THAT(forward("aaabbbbb"), ElementsAre("3 x a", "5 x b"));
  EXPECT_THAT(forward("abbb"), ElementsAre("1 x a", "3 x b"));
  EXPECT_THAT(forward("abababab", every(4)), ElementsAre("2 x abaB"));
  EXPECT_THAT(forward("ababababab", every(3)), ElementsAre("1 x abAbaB", "1 x abAb"));
}

// Of patterns that come in turn, each is found again, so that bodies have fewest layers.
TEST(LayerLoops, OfSeveralPatternsRepeatEach) {
  EXPECT_THAT(forward("abababcabab"), ElementsAre("3 x ab", "1 x c", "2 x ab"));
  EXPECT_THAT(forward("acacacacbacbacacacac"), ElementsAre("4 x ac", "2 x bac", "3 x ac"));
  EXPECT_THAT(forward("abcabcabcaab"), ElementsAre("3 x abc", "2 x a", "1 x b"));
  // Nemotron-H 47B: 24 layers in bodies stand for 98, and it is one of them that repeats most.
  const std::string pattern =
      "M-M-M-M-M-M-M-M-M*-M-M-M-M-M-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-M-M---MM---M-M*-M-M-M-M-M-";
  std::string letters;
  for (const char layer : pattern) letters += layer == 'M' ? 'c' : layer == '*' ? 'a' : 'b';
  const std::vector<int> kinds = kinds_of(letters);
  std::size_t bodies = 0;
  for (const LayerLoop& loop : forward_loops({kinds, kOfKinds}, {})) bodies += loop.body.size();
  EXPECT_EQ(bodies, 24U);
  // What is computed again counts as well.
  EXPECT_THAT(forward("abbbabbbbbb", every(4)), ElementsAre("2 x abbB", "3 x b"));
  // Far more layers than any model has, of no pattern, end soon, too.
  std::string many;
  for (int i = 0; i < 3000; ++i) many += i * i % 7 < 3 && i % 11 != 0 ? 'a' : 'b';
  std::int64_t layers = 0;
  const std::vector<int> of_many = kinds_of(many);
  for (const LayerLoop& loop : forward_loops({of_many, kOfKinds}, every(3)))
    layers += loop.count * std::ssize(loop.body);
  EXPECT_EQ(layers, 3000);
}

// Where rows go from home to home, and back behind the last layer of a body, the pattern repeats all the
// same; only the last layers of all, which hand rows on elsewhere, stand apart.
TEST(LayerLoops, OfHomesThatAlternateRepeat) {
  const auto loops = [](const std::string& letters, const std::vector<int>& homes) {
    const std::vector<int> kinds = kinds_of(letters);
    return text_of(forward_loops({kinds, kOfKinds, homes}, {}));
  };
  EXPECT_THAT(loops("abababab", {0, 1, 0, 1, 0, 1, 0, 1, 0}), ElementsAre("4 x ab"));
  EXPECT_THAT(loops("abababab", {0, 1, 0, 1, 0, 1, 0, 1, 1}), ElementsAre("3 x ab", "1 x a", "1 x b"));
  EXPECT_THAT(loops("abbbabbbabbb", {0, 1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 1}),
              ElementsAre("2 x abbb", "1 x a", "3 x b"));
}

// Each layer comes once, in its turn, with its kind; those that keep something are numbered among themselves.
RC_GTEST_PROP(LayerLoops, VisitEachLayerOnce, ()) {
  const auto layers = pick("layers", rc::gen::inRange(1, 40));
  std::vector<int> in_turn = pick(
      "kinds in turn",
      rc::gen::resize(6, rc::gen::nonEmpty(rc::gen::container<std::vector<int>>(rc::gen::inRange(0, 3)))));
  std::vector<int> kinds(static_cast<std::size_t>(layers));
  for (std::size_t layer = 0; layer < kinds.size(); ++layer) kinds[layer] = in_turn[layer % in_turn.size()];
  // Layers of one kind have their rows where the others have not, and what is behind them has them anywhere.
  const int elsewhere = pick("kind elsewhere", rc::gen::inRange(0, 4));
  std::vector<int> homes(kinds.size());
  std::transform(kinds.begin(), kinds.end(), homes.begin(),
                 [&](int kind) { return kind == elsewhere ? 1 : 0; });
  homes.push_back(pick("home behind", rc::gen::inRange(0, 2)));
  const Recompute recompute =
      pick("recompute", rc::gen::element(Recompute{}, kFull, every(2), every(3), every(5)));
  const auto visit = [](const std::vector<LayerLoop>& loops, const auto& body) {
    for (const LayerLoop& loop : loops) {
      for (std::int64_t i = 0; i < loop.count; ++i) {
        for (const LayerPlace& place : loop.body) body(place, i);
      }
    }
  };
  const auto at = [](StackIndex index, std::int64_t i) { return index.first + i * index.step; };
  std::int64_t layer = 0, kept = 0;
  std::vector<std::int64_t> of_kind(3);
  ByParts<std::int64_t> of_parts, kept_of_parts;
  std::array<std::int64_t, 3> of_mlp{};
  std::array<std::int64_t, kMostHomes> inputs{};
  std::array<std::array<std::int64_t, kHaving.size()>, kMostHomes> kept_with{};
  const auto mlp = [](const LayerPlace& place) { return static_cast<std::size_t>(place.parts.mlp); };
  const StageLayers stage{kinds, kOfKinds, homes};
  visit(forward_loops(stage, recompute), [&](const LayerPlace& place, std::int64_t i) {
    const bool again = recompute.kind == Recompute::Kind::full ||
                       (recompute.kind == Recompute::Kind::every && (layer + 1) % recompute.every == 0);
    RC_ASSERT(at(place.layer, i) == layer);
    const int home = homes[static_cast<std::size_t>(layer)],
              next = homes[static_cast<std::size_t>(layer) + 1];
    RC_ASSERT(place.home == home);
    RC_ASSERT(place.next_home == next);
    RC_ASSERT(at(place.input, i) == inputs[static_cast<std::size_t>(home)]++);
    RC_ASSERT(at(place.output, i) == inputs[static_cast<std::size_t>(next)]);
    RC_ASSERT(place.kind == kinds[static_cast<std::size_t>(layer)]);
    RC_ASSERT(place.parts == kOfKinds[static_cast<std::size_t>(place.kind)]);
    RC_ASSERT(place.recomputed == again);
    RC_ASSERT(at(place.of_kind, i) == of_kind[static_cast<std::size_t>(place.kind)]++);
    RC_ASSERT(at(place.turn, i) == of_parts[place.parts]);
    RC_ASSERT(at(place.mlp_turn, i) == of_mlp[mlp(place)]);
    RC_ASSERT(at(place.of_parts, i) == of_parts[place.parts]++);
    RC_ASSERT(at(place.of_mlp, i) == of_mlp[mlp(place)]++);
    if (!again) {
      ++kept, ++kept_of_parts[place.parts];
      for (const Having what : kHaving) {
        if (have(place.parts, what))
          RC_ASSERT(at(place.kept_with(what), i) ==
                    kept_with[static_cast<std::size_t>(home)][static_cast<std::size_t>(what)]++);
      }
    }
    ++layer;
  });
  RC_ASSERT(layer == layers);
  RC_ASSERT(kept == layers_that_keep(layers, recompute));
  const auto keep = layers_that_keep(stage, recompute);
  for (const LayerParts parts : kLayerParts)
    RC_ASSERT(kept_of_parts[parts] == keep[0][parts] + keep[1][parts]);
  for (std::size_t home = 0; home < keep.size(); ++home) {
    for (const Having what : kHaving)
      RC_ASSERT(count_of(keep[home], what) == kept_with[home][static_cast<std::size_t>(what)]);
  }
  ByParts<std::int64_t> turn;
  std::array<std::int64_t, 3> mlp_turn{};
  visit(backward_loops(stage, recompute), [&](const LayerPlace& place, std::int64_t i) {
    --layer;
    RC_ASSERT(at(place.layer, i) == layer);
    const auto home = static_cast<std::size_t>(homes[static_cast<std::size_t>(layer)]);
    RC_ASSERT(at(place.input, i) == --inputs[home]);
    RC_ASSERT(place.kind == kinds[static_cast<std::size_t>(layer)]);
    RC_ASSERT(at(place.of_kind, i) == --of_kind[static_cast<std::size_t>(place.kind)]);
    RC_ASSERT(at(place.of_parts, i) == --of_parts[place.parts]);
    RC_ASSERT(at(place.of_mlp, i) == --of_mlp[mlp(place)]);
    RC_ASSERT(at(place.turn, i) == turn[place.parts]++);
    RC_ASSERT(at(place.mlp_turn, i) == mlp_turn[mlp(place)]++);
    if (place.recomputed) return;
    for (const Having what : kHaving) {
      if (have(place.parts, what))
        RC_ASSERT(at(place.kept_with(what), i) == --kept_with[home][static_cast<std::size_t>(what)]);
    }
  });
  RC_ASSERT(layer == 0);
}

}  // namespace
}  // namespace cp
