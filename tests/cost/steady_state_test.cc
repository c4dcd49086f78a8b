// A server's steady state, against a server that is followed step by step.
#include "sim/cost/serving/steady_state.h"

#include <algorithm>
#include <cstddef>
#include <deque>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/error.h"

namespace cp::sim {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Follows a server that reads at most one prompt in a step.
class Server {
 public:
  Server(const ServingLoad& load, const ServingStep& step, bool apart)
      : load_(load), step_(step), apart_(apart) {}

  struct Means {
    double tpot_us = 0, ttft_us = 0;
  };

  // Requests come every `gap_us` at the beginning, and then each when another one is answered. Of those that
  // begin behind `skipped`.
  Means run(double gap_us, std::size_t skipped, std::size_t counted) {
    for (std::int64_t i = 0; i < load_.requests; ++i)
      waiting_.push_back({static_cast<double>(i) * gap_us, 0, 0});
    std::vector<Request> done;
    while (done.size() < skipped + counted) {
      const bool reads = !waiting_.empty() && waiting_.front().came_us <= now_us_;
      const bool writes = !writing_.empty() && !(apart_ && reads);
      if (!reads && !writes) {
        now_us_ = waiting_.front().came_us;
        continue;
      }
      now_us_ += step_us(reads, writes);
      if (writes) {
        for (Request& request : writing_) ++request.written;
        for (const Request& request : writing_) {
          if (request.written < load_.new_tokens) continue;
          done.push_back(request);
          done.back().end_us = now_us_;
          waiting_.push_back({now_us_, 0, 0});
        }
        std::erase_if(writing_, [&](const Request& r) { return r.written >= load_.new_tokens; });
      }
      if (reads) {
        Request request = waiting_.front();
        waiting_.pop_front();
        request.first_us = now_us_, request.written = 1;
        writing_.push_back(request);
      }
    }
    Means means;
    for (std::size_t i = skipped; i < skipped + counted; ++i) {
      const Request& r = done[i];
      means.tpot_us +=
          (r.end_us - r.first_us) / static_cast<double>(load_.new_tokens - 1) / static_cast<double>(counted);
      means.ttft_us += (r.first_us - r.came_us) / static_cast<double>(counted);
    }
    return means;
  }

 private:
  struct Request {
    double came_us = 0, first_us = 0;
    std::int64_t written = 0;
    double end_us = 0;
  };

  // Products of all rows together; attention of those that write on top.
  double step_us(bool reads, bool writes) const {
    if (!reads) return step_.decode_us;
    if (!writes) return step_.prompt_us;
    const double rows = static_cast<double>(load_.prompt_tokens + static_cast<std::int64_t>(writing_.size()));
    return step_.prompt_us * rows / static_cast<double>(load_.prompt_tokens) + step_.decode_attention_us;
  }

  const ServingLoad load_;
  const ServingStep step_;
  const bool apart_;
  double now_us_ = 0;
  std::deque<Request> waiting_;
  std::vector<Request> writing_;
};

constexpr ServingStep kStep{10e3, 2e3, 60e3};

SoftwareProfile software_that(bool apart) {
  SoftwareProfile software;
  software.prompts_apart = apart;
  return software;
}

TEST(SteadyState, AloneATokenTakesAStep) {
  const ServingTimes times = steady_state({1, 1000, 100, Arrivals::spread}, kStep, software_that(false));
  EXPECT_DOUBLE_EQ(times.tpot_us, kStep.decode_us);
  EXPECT_NEAR(times.ttft_us, kStep.prompt_us, 0.05 * kStep.prompt_us);
  EXPECT_EQ(times.prompts_us, 0);
}

// Spread over the life of a request.
TEST(SteadyState, TokensTakeAsLongAsOnAServerThatIsFollowed) {
  for (const bool apart : {false, true}) {
    for (const ServingLoad& load :
         {ServingLoad{4, 1000, 200}, ServingLoad{16, 1000, 200}, ServingLoad{32, 4000, 400},
          ServingLoad{8, 500, 1000}, ServingLoad{64, 1000, 1000}}) {
      const ServingTimes times = steady_state(load, kStep, software_that(apart));
      const double life_us = times.ttft_us + static_cast<double>(load.new_tokens - 1) * times.tpot_us;
      Server server(load, kStep, apart);
      const Server::Means means = server.run(life_us / static_cast<double>(load.requests),
                                             static_cast<std::size_t>(3 * load.requests),
                                             static_cast<std::size_t>(4 * load.requests));
      EXPECT_NEAR(times.tpot_us / means.tpot_us, 1, 0.04)
          << load.requests << " requests, " << load.prompt_tokens << " + " << load.new_tokens
          << (apart ? " apart" : "");
    }
  }
}

// All come at once, and stay together: just so.
TEST(SteadyState, RequestsThatComeTogetherStayTogetherWherePromptsAreReadApart) {
  for (const std::int64_t requests : {2, 16, 128}) {
    const ServingLoad load{requests, 1000, 200, Arrivals::together};
    const ServingTimes times = steady_state(load, kStep, software_that(true));
    const auto count = static_cast<std::size_t>(requests);
    const Server::Means means = Server(load, kStep, true).run(0, count, 2 * count);
    EXPECT_NEAR(times.tpot_us / means.tpot_us, 1, 1e-9) << requests;
    EXPECT_NEAR(times.ttft_us / means.ttft_us, 1, 1e-9) << requests;
  }
}

TEST(SteadyState, PromptsApartHoldUpMoreThanBeside) {
  const ServingLoad load{16, 1000, 200};
  EXPECT_GT(steady_state(load, kStep, software_that(true)).tpot_us,
            steady_state(load, kStep, software_that(false)).tpot_us);
}

TEST(SteadyState, AHostThatIsAheadCostsNothing) {
  SoftwareProfile software = software_that(false);
  software.step_host_us = 1e3, software.request_host_us = 100;
  const ServingLoad load{16, 1000, 1 << 20};
  EXPECT_NEAR(steady_state(load, kStep, software).tpot_us, kStep.decode_us + 1e3 + 1600, 30);
  EXPECT_DOUBLE_EQ(steady_state(load, kStep, software).host_us, 2600);
  software.host_ahead = true;
  EXPECT_DOUBLE_EQ(steady_state(load, kStep, software).host_us, 0);
  software.request_host_us = 1e3;  // 17 ms
  EXPECT_DOUBLE_EQ(steady_state(load, kStep, software).host_us, 7e3);
}

// A prompt that is read apart is one request, however many wait.
TEST(SteadyState, TheHostPreparesAPromptAsOneRequest) {
  SoftwareProfile software = software_that(true);
  software.step_host_us = 1e3, software.request_host_us = 100;
  const ServingLoad load{101, 1000, 201, Arrivals::together};
  const ServingTimes times = steady_state(load, kStep, software);
  EXPECT_DOUBLE_EQ(times.tpot_us, kStep.decode_us + 1e3 + 101 * 100 + 50 * (kStep.prompt_us + 1100) / 200);
  EXPECT_DOUBLE_EQ(times.ttft_us, 51 * (kStep.prompt_us + 1100));
}

TEST(SteadyState, RefusesWhatIsNoLoad) {
  EXPECT_THAT(
      [] {
        steady_state({0, 1, 1}, kStep, {});
      },
      ThrowsMessage<InvalidInput>(HasSubstr("requests 0 is out of range; use 1 or more")));
  EXPECT_THAT(
      [] {
        steady_state({1, 0, 1}, kStep, {});
      },
      ThrowsMessage<InvalidInput>(HasSubstr("prompt tokens 0 is out of range")));
}

}  // namespace
}  // namespace cp::sim
