// What Gloo says, as the project's errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#ifdef CP_HAVE_GLOO

#include "runtime/errors.h"
#include "runtime/gloo/gloo_error.h"

namespace cp::runtime {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const ErrorFacts kFacts{.operation = "all_gather", .group = "cp[0,1]", .sequence = 4, .rank = 1, .step = 9};

// What becomes of Gloo's words.
Error translated(const gloo::Exception& said) {
  try {
    throw_gloo(said, "rank 1: all_gather #4 on cp[0,1]", kFacts);
  } catch (const Error& error) {
    return error;
  }
}

struct Sentence {
  const char* words;
  ErrorKind kind;
};

// As Gloo 0.5.0 prints them.
const Sentence kSentences[] = {
    {"[../gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 300ms for recv operation to complete",
     ErrorKind::timeout},
    {"[../gloo/transport/tcp/pair.cc:760] Connect timeout [127.0.0.1]:4711", ErrorKind::timeout},
    {"[../gloo/transport/tcp/pair.cc:598] Read timeout [127.0.0.1]:4711", ErrorKind::timeout},
    {"[../gloo/rendezvous/file_store.cc:98] Wait timeout for key(s): [0/1]", ErrorKind::timeout},
    {"[../gloo/transport/tcp/pair.cc:598] Read error [127.0.0.1]:4711: Connection timed out",
     ErrorKind::timeout},
    {"[../gloo/transport/tcp/pair.cc:589] Read error [127.0.0.1]:4711: Connection reset by peer",
     ErrorKind::peer_lost},
    {"[../gloo/transport/tcp/pair.cc:598] Connection closed by peer [127.0.0.1]:4711", ErrorKind::peer_lost},
};

TEST(GlooErrors, WordsBecomeKindsWithTheFacts) {
  for (const Sentence& sentence : kSentences) {
    const Error error = translated(gloo::IoException(sentence.words));
    EXPECT_EQ(error.kind(), sentence.kind) << sentence.words;
    EXPECT_EQ(error.facts(), kFacts);
    EXPECT_EQ(error.message(), str("rank 1: all_gather #4 on cp[0,1]: ", sentence.words));
  }
}

// It says "timeout", and is none: another wait's timeout, or abort(), has closed the connection.
TEST(GlooErrors, AConnectionThatWasClosedHereIsLost) {
  const Error error = translated(
      gloo::IoException("[../gloo/transport/tcp/pair.cc:960] Application timeout caused pair closure"));
  EXPECT_EQ(error.kind(), ErrorKind::peer_lost);
  EXPECT_THAT(error.what(), HasSubstr("closed on this side"));
  EXPECT_THAT(error.what(), Not(HasSubstr("pair closure")));
}

// A group may have any name.
TEST(GlooErrors, OnlyGloosOwnWordsCount) {
  try {
    throw_gloo(gloo::IoException("Connection closed by peer"), "rank 1: all_gather #4 on Read timeout[0,1]",
               kFacts);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::peer_lost);
  }
}

void fail_a_check(const char* file) {
  try {
    throw gloo::EnforceNotMet(file, 42, "rv != -1", "Bad file descriptor");
  } catch (const gloo::EnforceNotMet& error) {
    throw_gloo(error, "rank 1", kFacts);
  }
}

TEST(GlooErrors, AFailedCheckOfTheTransportIsABrokenConnection) {
  EXPECT_THROW(fail_a_check("../gloo/transport/tcp/socket.cc"), PeerLost);
  EXPECT_THROW(fail_a_check("../gloo/allreduce.cc"), gloo::EnforceNotMet);  // a defect stays one
}

}  // namespace
}  // namespace cp::runtime

#else

TEST(GlooErrors, IsTestedWhereGlooWasFound) { GTEST_SKIP() << "built without Gloo (libgloo-dev)"; }

#endif
