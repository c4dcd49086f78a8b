#include "runtime/rendezvous/authentication.h"

#include <fstream>
#include <sys/stat.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/errors.h"
#include "tests/rendezvous/test_job.h"
#include "tests/runtime/processes.h"

namespace cp {
namespace {

using runtime::Handshake;
using runtime::Session;
using runtime::Side;
using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;
using testing::kToken;

std::string hexadecimal(const std::string& bytes) {
  std::string text;
  for (const char c : bytes) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(c));
    text += digits;
  }
  return text;
}

// RFC 4231, test case 2.
TEST(Authentication, HmacIsThatOfTheStandard) {
  EXPECT_EQ(hexadecimal(runtime::hmac_sha256("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

TEST(Authentication, TokensAreLongAndDiffer) {
  const std::string token = runtime::make_token();
  EXPECT_EQ(token.size(), 64U);
  EXPECT_EQ(token.find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_NE(token, runtime::make_token());
}

Handshake complete_handshake() {
  Handshake handshake = testing::handshake_of(1, 4);
  handshake.server_nonce = runtime::make_nonce();
  return handshake;
}

TEST(Session, EachSideOpensWhatTheOtherSealed) {
  const Handshake handshake = complete_handshake();
  Session rank(kToken, handshake, Side::rank), server(kToken, handshake, Side::server);
  for (const char* text : {"a", "", "b"}) {
    EXPECT_EQ(server.open(rank.seal(text)), text);
    EXPECT_EQ(rank.open(server.seal(text)), text);
  }
}

TEST(Session, FramesThatWereAlteredRepeatedReflectedOrLeftOutDoNotOpen) {
  const Handshake handshake = complete_handshake();
  Session rank(kToken, handshake, Side::rank), server(kToken, handshake, Side::server);
  const auto first = rank.seal("first"), second = rank.seal("second");
  EXPECT_THROW(rank.open(first), runtime::AuthenticationError);
  EXPECT_THROW(server.open(second), runtime::AuthenticationError);
  auto altered = first;
  altered.set_message("First");
  EXPECT_THROW(server.open(altered), runtime::AuthenticationError);
  altered = first;
  altered.clear_mac();
  EXPECT_THROW(server.open(altered), runtime::AuthenticationError);
  EXPECT_EQ(server.open(first), "first");
  EXPECT_THROW(server.open(first), runtime::AuthenticationError);
  EXPECT_EQ(server.open(second), "second");
}

TEST(Authentication, TextsAreEqualInLengthAndEveryByte) {
  const std::string text(runtime::kMacBytes, 'm');
  EXPECT_TRUE(runtime::equal_in_constant_time(text, text));
  EXPECT_TRUE(runtime::equal_in_constant_time("", ""));
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::string other = text;
    other[i] ^= 1;
    EXPECT_FALSE(runtime::equal_in_constant_time(text, other)) << i;
    EXPECT_FALSE(runtime::equal_in_constant_time(text, text.substr(0, i))) << i;
    EXPECT_FALSE(runtime::equal_in_constant_time(text.substr(0, i), text)) << i;
  }
}

// A prefix of the right MAC, down to none; the right one with more behind it; one with any bit of any byte
// changed. None of them takes the frame's number.
TEST(Session, OpensWithTheWholeMacAlone) {
  const Handshake handshake = complete_handshake();
  Session rank(kToken, handshake, Side::rank), server(kToken, handshake, Side::server);
  const auto frame = rank.seal("first");
  ASSERT_EQ(frame.mac().size(), runtime::kMacBytes);
  const auto expect_closed = [&](const std::string& mac, const std::string& what) {
    auto other = frame;
    other.set_mac(mac);
    EXPECT_THROW(server.open(other), runtime::AuthenticationError) << what;
  };
  for (std::size_t size = 0; size < runtime::kMacBytes; ++size) {
    expect_closed(frame.mac().substr(0, size), str("the first ", size, " bytes"));
    expect_closed(frame.mac().substr(runtime::kMacBytes - size), str("the last ", size, " bytes"));
    std::string guessed = frame.mac();
    for (std::size_t i = size; i < guessed.size(); ++i) guessed[i] = static_cast<char>(~guessed[i]);
    expect_closed(guessed, str("the first ", size, " bytes, then others"));
    for (int bit = 0; bit < 8; ++bit) {
      std::string mac = frame.mac();
      mac[size] = static_cast<char>(mac[size] ^ (1 << bit));
      expect_closed(mac, str("bit ", bit, " of byte ", size));
    }
  }
  expect_closed(frame.mac() + '\0', "one byte more");
  expect_closed(frame.mac() + frame.mac(), "twice");
  EXPECT_EQ(server.open(frame), "first");
}

TEST(Session, SealsTheWholeMessage) {
  const Handshake handshake = complete_handshake();
  Session rank(kToken, handshake, Side::rank), server(kToken, handshake, Side::server);
  const std::string message = "a message";
  const auto frame = rank.seal(message);
  const auto expect_closed = [&](const std::string& text) {
    auto other = frame;
    other.set_message(text);
    EXPECT_THROW(server.open(other), runtime::AuthenticationError) << text;
  };
  for (std::size_t size = 0; size < message.size(); ++size) {
    expect_closed(message.substr(0, size));
    std::string other = message;
    other[size] ^= 1;
    expect_closed(other);
  }
  expect_closed(message + '\0');
  expect_closed(std::string(8, '\0') +
                message);  // the number of a frame lies before its message in what is sealed
  EXPECT_EQ(server.open(frame), message);
}

// Whatever the two sides do not agree on, nothing opens.
TEST(Session, DependsOnEveryPartOfTheHandshake) {
  const Handshake handshake = complete_handshake();
  const auto opens = [&](const std::string& token, const Handshake& other) {
    Session rank(kToken, handshake, Side::rank), server(token, other, Side::server);
    try {
      server.open(rank.seal("x"));
      return true;
    } catch (const runtime::AuthenticationError&) {
      return false;
    }
  };
  EXPECT_TRUE(opens(kToken, handshake));
  EXPECT_FALSE(opens("another token, as long", handshake));
  std::vector<Handshake> others(14, handshake);
  others[0].protocol_version++;
  others[1].job_id += "x";
  others[2].rank++;
  others[3].world_size++;
  others[4].host += "x";
  others[5].pid++;
  others[6].rank_nonce[0] ^= 1;
  others[7].server_nonce[0] ^= 1;
  others[8].rank_nonce.pop_back();
  others[9].server_nonce.pop_back();
  others[10].job_id.pop_back();
  others[11].host.clear();
  // The same bytes, cut elsewhere.
  others[12].server_nonce.insert(0, 1, others[12].rank_nonce.back());
  others[12].rank_nonce.pop_back();
  std::swap(others[13].rank_nonce, others[13].server_nonce);
  for (const Handshake& other : others) EXPECT_FALSE(opens(kToken, other)) << &other - others.data();
}

class TokenFile : public ::testing::Test {
 protected:
  std::string write(const std::string& text, mode_t mode) {
    const std::string path = directory_.path() + "/token";
    std::ofstream(path) << text;
    chmod(path.c_str(), mode);
    return path;
  }
  testing::TemporaryDirectory directory_;
};

TEST_F(TokenFile, IsReadWithoutTheLineEnd) {
  EXPECT_EQ(runtime::read_token_file(write(" " + kToken + "\n", 0600)), kToken);
  EXPECT_EQ(runtime::read_token_file(write(kToken, 0400)), kToken);
}

TEST_F(TokenFile, OthersMayNotReadIt) {
  for (const mode_t mode : {0644U, 0640U, 0604U}) {
    const std::string path = write(kToken, mode);
    EXPECT_THAT(error_of([&] { runtime::read_token_file(path); }),
                AllOf(HasSubstr("authentication: token file"), HasSubstr("chmod 600 " + path)));
  }
}

TEST_F(TokenFile, IsThereAndHoldsAToken) {
  EXPECT_THAT(
      error_of([&] { runtime::read_token_file(write("short\n", 0600)); }),
      AllOf(HasSubstr("invalid_input: "), HasSubstr("holds 5 characters, but a token has at least 16")));
  EXPECT_THAT(
      error_of([&] { runtime::read_token_file(directory_.path() + "/none"); }),
      AllOf(HasSubstr("invalid_input: "), HasSubstr("No such file"), HasSubstr("openssl rand -hex 32")));
  EXPECT_THAT(error_of([&] { runtime::read_token_file(directory_.path()); }),
              HasSubstr("not a regular file"));
}

}  // namespace
}  // namespace cp
