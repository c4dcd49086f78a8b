// What the store answers, without sockets and clocks.
#include "runtime/rendezvous/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/text.h"

namespace cp {
namespace {

using runtime::Message;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using namespace std::chrono_literals;

Message::Request gather(std::uint64_t id, const std::vector<Rank>& ranks, const std::string& data) {
  Message::Request request;
  request.set_id(id);
  request.set_timeout_ms(1000);
  request.mutable_gather()->set_name("g");
  request.mutable_gather()->set_data(data);
  for (const Rank rank : ranks) request.mutable_gather()->add_ranks(rank);
  return request;
}

TEST(RendezvousStoreOfTheServer, AGatheringIsOfTheSameRanksToAll) {
  const runtime::Roster roster(4, 1s, 1s);
  runtime::Store store(roster);
  std::vector<std::string> answers;
  const auto ask = [&](Rank rank, const std::vector<Rank>& ranks) {
    store.handle(rank, gather(static_cast<std::uint64_t>(rank), ranks, str("of ", rank)), {},
                 [&](const Message::Answer& answer) {
                   answers.push_back(str(answer.id(), ": ", answer.reason(), join(answer.values(), ",")));
                 });
  };
  ask(0, {0, 3});
  EXPECT_THAT(answers, IsEmpty());
  ask(1, {1, 3});
  EXPECT_THAT(
      answers,
      ElementsAre(
          "1: rank 1 names ranks 1, 3 for 'g', but rank 0 names ranks 0, 3; name the same ranks on all of "
          "them"));
  answers.clear();
  ask(3, {0, 3});
  EXPECT_THAT(answers, ElementsAre("0: of 0,of 3", "3: of 0,of 3"));
}

}  // namespace
}  // namespace cp
