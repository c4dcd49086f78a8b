#include "traces/environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/digest.h"

namespace cp {
namespace {

using ::testing::MatchesRegex;

TEST(Environment, IsThatOfThisProcess) {
  const Environment environment = this_environment({.host = "node1",
                                                    .backend = "gloo",
                                                    .libraries = {{"gloo", "0.5"}},
                                                    .cpsim_version = "0.1.0",
                                                    .world_size = 4,
                                                    .scenario_text = "run {}",
                                                    .hash_host = false,
                                                    .host_salt = ""});
  EXPECT_EQ(environment.host, "node1");
  EXPECT_FALSE(environment.host_is_hashed);
  EXPECT_GT(environment.pid, 0);
  EXPECT_EQ(environment.backend, "gloo");
  EXPECT_EQ(environment.libraries.at("gloo"), "0.5");
  EXPECT_EQ(environment.world_size, 4);
  EXPECT_GT(environment.start_unix_ns, std::int64_t{1'700'000'000} * 1'000'000'000);
  EXPECT_EQ(environment.scenario_digest, Hasher().add(std::string_view("run {}")).digest());
  EXPECT_EQ(this_environment({}).scenario_digest, std::nullopt);
}

TEST(Environment, AHashedHostShowsNoName) {
  EnvironmentOptions options;
  options.host = "node1";
  options.hash_host = true;
  options.host_salt = "run 1";
  const Environment hashed = this_environment(options);
  EXPECT_TRUE(hashed.host_is_hashed);
  EXPECT_EQ(hashed.host, hashed_host("node1", "run 1"));
  EXPECT_THAT(hashed.host, MatchesRegex("host-[0-9a-f]{8}"));
}

TEST(Environment, HashesAreThoseOfSha256) {
  // printf '%s' '4:saltnode1' | sha256sum
  EXPECT_EQ(hashed_host("node1", "salt"), "host-999531db");
  EXPECT_NE(hashed_host("node1", "salt"), hashed_host("node1", "other"));
  EXPECT_NE(hashed_host("node1", "salt"), hashed_host("node2", "salt"));
  EXPECT_NE(hashed_host("node1", "salt"), hashed_host("tnode1", "sal"));
}

}  // namespace
}  // namespace cp
