// What the tests of meshes share: random meshes for properties, printing, digests and expected errors.
#pragma once

#include <cstddef>
#include <functional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "shared/base/digest.h"
#include "shared/base/error.h"
#include "shared/mesh/mesh.h"

namespace cp {

inline void PrintTo(const Mesh& mesh, std::ostream* out) { *out << mesh.to_string(); }
inline void showValue(const Mesh& mesh, std::ostream& out) { out << mesh.to_string(); }

// In [low, high]. Unlike rc::gen::inRange alone, it does not stay near `low` in the first tests.
inline rc::Gen<int> any_int(int low, int high) {
  return rc::gen::resize(rc::kNominalSize, rc::gen::inRange(low, high + 1));
}

// One to four axes a, b, c, d of sizes 1 to 4 over distinct ranks: 0 .. N-1, shuffled, or far apart.
inline rc::Gen<Mesh> any_mesh() {
  return rc::gen::exec([] {
    std::vector<MeshAxis> axes;
    std::size_t size = 1;
    for (const char* name : {"a", "b", "c", "d"}) {
      axes.push_back({name, *any_int(1, 4)});
      size *= static_cast<std::size_t>(axes.back().size);
      if (*any_int(0, 2) == 0) break;
    }
    if (*rc::gen::arbitrary<bool>()) return Mesh(std::move(axes));
    const Rank highest = *rc::gen::element(300, Mesh::kMaxRanks - 1);
    return Mesh(std::move(axes), *rc::gen::unique<std::vector<Rank>>(size, any_int(0, highest)));
  });
}

// At least `at_least` axes of the mesh, each at most once, in any order.
inline rc::Gen<std::vector<int>> any_axes_of(const Mesh& mesh, int at_least = 0) {
  const int num_axes = mesh.num_axes();
  return rc::gen::exec([num_axes, at_least] {
    std::vector<int> unused, chosen;
    for (int axis = 0; axis < num_axes; ++axis) unused.push_back(axis);
    for (int count = *any_int(at_least, num_axes); count > 0; --count) {
      const auto pick = unused.begin() + *any_int(0, static_cast<int>(unused.size()) - 1);
      chosen.push_back(*pick);
      unused.erase(pick);
    }
    return chosen;
  });
}

inline rc::Gen<Rank> any_rank_of(const Mesh& mesh) { return rc::gen::elementOf(mesh.ranks()); }

inline std::vector<std::string> names_of(const Mesh& mesh, const std::vector<int>& axes) {
  std::vector<std::string> names;
  names.reserve(axes.size());
  for (const int axis : axes) names.push_back(mesh.axes()[static_cast<std::size_t>(axis)].name);
  return names;
}

inline Digest digest_of(const Mesh& mesh) {
  Hasher hasher;
  return hash(hasher, mesh).digest();
}

// Expects InvalidInput whose message has each of `reasons`.
inline void expect_refused(const std::function<void()>& request, const std::vector<std::string>& reasons) {
  try {
    request();
    ADD_FAILURE() << "was accepted; expected an error with: " << ::testing::PrintToString(reasons);
  } catch (const InvalidInput& error) {
    for (const std::string& reason : reasons) EXPECT_THAT(error.what(), ::testing::HasSubstr(reason));
  }
}

}  // namespace cp
