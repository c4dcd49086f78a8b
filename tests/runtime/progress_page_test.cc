// The page that a rank shares with its launcher: what was written last, whole, whatever happens to the
// writer.
#include "runtime/progress_page.h"

#include <csignal>
#include <cstdlib>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/job_environment.h"
#include "shared/base/error.h"
#include "shared/base/text.h"

namespace cp::runtime {
namespace {

using namespace std::chrono_literals;
using ::testing::IsEmpty;

class Page : public ::testing::Test {
 protected:
  std::string said() const { return to_string(reader_.read().value()); }

  ProgressReader reader_;
  const std::string text_ = reader_.text();
  Descriptor descriptor_ = reader_.take_descriptor();
};

class OpenPage : public Page {
 protected:
  // As the rank does; its descriptor is closed by that.
  std::shared_ptr<ProgressWriter> writer_ = [this] {
    const int number = descriptor_.get();
    const int copy = dup(number);
    auto writer = ProgressWriter::open(text_);
    dup2(copy, number);  // which this process owns
    close(copy);
    return writer;
  }();
};

TEST_F(Page, SaysNothingUntilItIsOpened) { EXPECT_FALSE(reader_.read()); }

TEST_F(OpenPage, TellsWhatIsUnderWayAndWhatHasEnded) {
  ASSERT_NE(writer_, nullptr);
  EXPECT_EQ(said(), "before its first collective");
  const int track = writer_->claim();
  EXPECT_EQ(said(), "before its first collective");
  writer_->begun(track, "cp[0,1]", "all_gather", 0, 40);
  EXPECT_EQ(said(), "in all_gather #0 of cp[0,1], step 40");
  writer_->ended(track);
  EXPECT_EQ(said(), "after all_gather #0 of cp[0,1], step 40, had ended");
  writer_->begun(track, "dp[0,2]", "all_reduce", 3, -1);
  EXPECT_EQ(said(), "in all_reduce #3 of dp[0,2]");
  writer_->ended(track);
  EXPECT_EQ(said(), "after all_reduce #3 of dp[0,2] had ended");
}

TEST_F(OpenPage, TellsOfAllStreamsWhatIsUnderWay) {
  const int a = writer_->claim(), b = writer_->claim(), c = writer_->claim();
  writer_->begun(a, "a[0,1]", "broadcast", 1, 1);
  writer_->begun(b, "b[0,1]", "exchange", 2, 2);
  EXPECT_EQ(said(), "in exchange #2 of b[0,1], step 2 and in broadcast #1 of a[0,1], step 1");
  writer_->begun(c, "c[0,1]", "all_reduce", 3, 3);
  const int d = writer_->claim();
  writer_->begun(d, "d[0,1]", "all_reduce", 4, 4);
  EXPECT_EQ(said(),
            "in all_reduce #4 of d[0,1], step 4, in all_reduce #3 of c[0,1], step 3, in exchange #2 of "
            "b[0,1], step 2 and in 1 more");
  for (const int track : {d, c, b}) writer_->ended(track);
  EXPECT_EQ(said(), "in broadcast #1 of a[0,1], step 1");
  writer_->ended(a);
  EXPECT_EQ(said(), "after broadcast #1 of a[0,1], step 1, had ended");
}

TEST_F(OpenPage, CutsWhatIsTooLong) {
  const int track = writer_->claim();
  writer_->begun(track, "cp[" + std::string(500, '7'), "all_gather", 5, -1);
  EXPECT_EQ(said(), str("in all_gather #5 of cp[", std::string(kPageGroupBytes - 1 - 3 - 3, '7'), "..."));
  writer_->begun(track, std::string(kPageGroupBytes - 1, 'g'), "all\ngather", 6, -1);
  EXPECT_EQ(said(), str("in all?gather #6 of ", std::string(kPageGroupBytes - 1, 'g')));
}

// A stream without a place may be in anything.
TEST_F(OpenPage, ClaimsNoMoreThanItKnows) {
  std::vector<int> tracks;
  for (int i = 0; i < kPageTracks; ++i) tracks.push_back(writer_->claim());
  writer_->begun(tracks[30], "cp[0,1]", "all_gather", 1, -1);
  EXPECT_EQ(writer_->claim(), -1);
  writer_->begun(-1, "x[0,1]", "all_gather", 1, -1);
  EXPECT_EQ(said(), "in all_gather #1 of cp[0,1]");
  writer_->ended(tracks[30]);
  EXPECT_THAT(said(), IsEmpty());
}

TEST_F(OpenPage, GivesTheTracksOfADeviceToTheNext) {
  for (int device = 0; device < 100; ++device) {
    const int track = writer_->claim();
    ASSERT_GE(track, 0);
    writer_->begun(track, str(device, "[0,1]"), "all_gather", device, -1);
    writer_->ended(track);
    writer_->release(track);
  }
  EXPECT_EQ(said(), "after all_gather #99 of 99[0,1] had ended");
}

// It failed in that, and may have gone on with another.
TEST_F(OpenPage, ADeviceThatWentAmidACollectiveIsNotInItForEver) {
  const int track = writer_->claim();
  writer_->begun(track, "cp[0,1]", "all_gather", 1, -1);
  writer_->release(track);
  EXPECT_EQ(said(), "in all_gather #1 of cp[0,1]");
  const int other = writer_->claim();
  EXPECT_THAT(said(), IsEmpty());
  writer_->begun(other, "cp[0,1]", "all_gather", 0, -1);
  EXPECT_EQ(said(), "in all_gather #0 of cp[0,1]");
}

TEST_F(OpenPage, SaysThatAGpuIsOnlyLookedAt) {
  writer_->set_look_every(10ms);
  const int track = writer_->claim();
  const std::string look = "; its GPU is checked every 10 ms)";
  EXPECT_EQ(said(), "(last seen before its first collective" + look);
  writer_->begun(track, "cp[0,1]", "all_gather", 1, 2);
  EXPECT_EQ(said(), "(last seen in all_gather #1 of cp[0,1], step 2" + look);
  writer_->ended(track);
  EXPECT_EQ(said(), "(last seen after all_gather #1 of cp[0,1], step 2, had ended" + look);
}

// Texts and numbers of one collective, at any moment at which the writer is killed.
TEST_F(Page, IsWholeAfterAnyDeath) {
  for (int round = 0; round < 30; ++round) {
    ProgressReader reader;
    const std::string text = reader.text();
    const Descriptor descriptor = reader.take_descriptor();
    const pid_t writer = fork();
    if (writer == 0) {
      const auto page = ProgressWriter::open(text);
      const int track = page->claim();
      for (std::int64_t i = 0;; ++i) {
        const char name[] = {'g', static_cast<char>('a' + i % 26), '\0'};
        const std::string group(kPageGroupBytes - 2, name[1]);
        page->begun(track, group, name, i, i);
        if (i % 3 != 0) page->ended(track);
      }
    }
    const auto begun = [&] {
      return reader.read() && to_string(*reader.read()) != "before its first collective";
    };
    while (!begun()) std::this_thread::yield();
    for (int look = 0; look < 200; ++look) reader.read();  // beside the writer
    std::this_thread::sleep_for(std::chrono::microseconds(round * 37));
    kill(writer, SIGKILL);
    waitpid(writer, nullptr, 0);
    const PageReport report = reader.read().value();
    const Progress& last = report.under_way.empty() ? report.ended.value() : report.under_way.front();
    const char letter = static_cast<char>('a' + last.sequence % 26);
    EXPECT_EQ(last.operation, str("g", letter));
    EXPECT_EQ(last.group, std::string(kPageGroupBytes - 2, letter));
    EXPECT_EQ(last.step, last.sequence);
    if (last.sequence % 3 == 0) {
      EXPECT_FALSE(report.under_way.empty());
    }
  }
}

// The launcher gave a number; what is behind it now may be anything.
TEST_F(Page, IsNotOpenedThroughAnotherDescriptor) {
  EXPECT_EQ(ProgressWriter::open(""), nullptr);
  EXPECT_EQ(ProgressWriter::open("7"), nullptr);
  EXPECT_EQ(ProgressWriter::open("x:y"), nullptr);
  EXPECT_EQ(ProgressWriter::open("-1:1"), nullptr);
  EXPECT_EQ(ProgressWriter::open("99999999999:1"), nullptr);
  const ProgressReader other;
  const int number = descriptor_.get();
  const Descriptor kept(dup(number));
  dup2(STDERR_FILENO, number);
  EXPECT_EQ(ProgressWriter::open(text_), nullptr);
  EXPECT_EQ(fcntl(number, F_GETFD), 0) << "a descriptor that is not ours was closed";
}

// What this process starts would else write in its name.
TEST_F(Page, IsTakenOutOfTheEnvironment) {
  JobEnvironment job;
  job.port = 1;
  job.token = "0123456789abcdef";
  for (const std::string& variable : variables_of(job)) {
    const std::size_t equals = variable.find('=');
    setenv(variable.substr(0, equals).c_str(), variable.substr(equals + 1).c_str(), 1);
  }
  const int number = descriptor_.get();
  const Descriptor kept(dup(number));
  setenv(kProgressVariable, text_.c_str(), 1);
  const JobEnvironment read = job_environment().value();
  EXPECT_NE(read.progress, nullptr);
  EXPECT_TRUE(reader_.read());
  EXPECT_EQ(getenv(kProgressVariable), nullptr);
  EXPECT_EQ(fcntl(number, F_GETFD), -1) << "what it starts would have the page";
  dup2(kept.get(), number);  // which descriptor_ owns
}

}  // namespace
}  // namespace cp::runtime
