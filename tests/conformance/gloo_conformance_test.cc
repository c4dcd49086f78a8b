// The Gloo device under the conformance suite: four processes over loopback.
#include <gtest/gtest.h>

#ifdef CP_HAVE_GLOO
#include <memory>

#include "runtime/gloo/gloo_device.h"
#include "tests/conformance/process_world.h"
#include "tests/runtime/processes.h"
#endif

namespace cp::conformance {
namespace {

#ifndef CP_HAVE_GLOO

TEST(GlooConformance, IsTestedWhereGlooWasFound) { GTEST_SKIP() << "built without Gloo (libgloo-dev)"; }

#else

std::unique_ptr<DeviceWorld> gloo_world(int world_size) {
  const auto store = std::make_shared<cp::testing::TemporaryDirectory>();
  return std::make_unique<ProcessWorld>(world_size, [store](Rank rank) {
    return std::make_unique<runtime::GlooDevice>(runtime::GlooOptions{
        .rank = rank, .store_directory = store->path(), .timeout = std::chrono::seconds(60)});
  });
}

DeviceFactory gloo_factory() {
  return {.name = "Processes", .target = host_target(), .host_memory = true, .make = gloo_world};
}

INSTANTIATE_TEST_SUITE_P(Gloo, DeviceConformance, ::testing::Values(gloo_factory()), factory_name);

#endif

}  // namespace
}  // namespace cp::conformance
