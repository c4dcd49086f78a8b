#include "runtime/rendezvous/authentication.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <optional>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include "runtime/descriptor.h"
#include "runtime/errors.h"

namespace cp::runtime {
namespace {

std::string random_bytes(std::size_t count) {
  std::string bytes(count, '\0');
  if (RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(count)) != 1)
    throw AuthenticationError("OpenSSL gives no random numbers, so that no token can be made");
  return bytes;
}

void append_number(std::string& out, std::uint64_t value) {
  for (int i = 0; i < 8; ++i) out.push_back(static_cast<char>((value >> (8 * i)) & 0xff));
}

// With its length, so that no two handshakes look alike.
void append_text(std::string& out, std::string_view text) {
  append_number(out, text.size());
  out.append(text);
}

std::string transcript(const Handshake& handshake, Side from) {
  std::string out;
  append_text(out,
              from == Side::server ? "cpsim rendezvous: server to rank" : "cpsim rendezvous: rank to server");
  append_number(out, handshake.protocol_version);
  append_text(out, handshake.job_id);
  append_number(out, static_cast<std::uint64_t>(handshake.rank));
  append_number(out, static_cast<std::uint64_t>(handshake.world_size));
  append_text(out, handshake.host);
  append_number(out, static_cast<std::uint64_t>(handshake.pid));
  append_number(out, static_cast<std::uint64_t>(handshake.launches));
  append_text(out, handshake.rank_nonce);
  append_text(out, handshake.server_nonce);
  return out;
}

const unsigned char* bytes_of(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}
unsigned char* bytes_of(std::string& text) { return reinterpret_cast<unsigned char*>(text.data()); }

// ChaCha20-Poly1305 with the frame's number as the nonce: keys are of one connection and direction, so no two
// frames share one.
class Aead {
 public:
  Aead(std::string_view key, std::uint64_t number) : context_(EVP_CIPHER_CTX_new(), &EVP_CIPHER_CTX_free) {
    append_number(nonce_, number);
    nonce_.resize(12, '\0');
    key_ = bytes_of(key);
  }

  // The encrypted message, and its mac.
  std::pair<std::string, std::string> seal(std::string_view message) {
    std::string sealed(message.size(), '\0'), mac(kMacBytes, '\0');
    int size = 0, rest = 0;
    const bool done = EVP_EncryptInit_ex(context_.get(), EVP_chacha20_poly1305(), nullptr, key_,
                                         bytes_of(std::string_view(nonce_))) == 1 &&
                      EVP_EncryptUpdate(context_.get(), bytes_of(sealed), &size, bytes_of(message),
                                        static_cast<int>(message.size())) == 1 &&
                      EVP_EncryptFinal_ex(context_.get(), bytes_of(sealed) + size, &rest) == 1 &&
                      EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_GET_TAG, static_cast<int>(kMacBytes),
                                          mac.data()) == 1;
    CP_INVARIANT(done && size + rest == static_cast<int>(message.size()), "ChaCha20-Poly1305 of OpenSSL");
    return {std::move(sealed), std::move(mac)};
  }

  // Nothing where the mac is not that of the message.
  std::optional<std::string> open(std::string_view sealed, std::string mac) {
    if (mac.size() != kMacBytes) return std::nullopt;
    std::string message(sealed.size(), '\0');
    int size = 0, rest = 0;
    const bool done = EVP_DecryptInit_ex(context_.get(), EVP_chacha20_poly1305(), nullptr, key_,
                                         bytes_of(std::string_view(nonce_))) == 1 &&
                      EVP_DecryptUpdate(context_.get(), bytes_of(message), &size, bytes_of(sealed),
                                        static_cast<int>(sealed.size())) == 1 &&
                      EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_SET_TAG, static_cast<int>(kMacBytes),
                                          mac.data()) == 1 &&
                      EVP_DecryptFinal_ex(context_.get(), bytes_of(message) + size, &rest) == 1;
    if (!done) return std::nullopt;
    return message;
  }

 private:
  std::unique_ptr<EVP_CIPHER_CTX, decltype(&EVP_CIPHER_CTX_free)> context_;
  std::string nonce_;
  const unsigned char* key_;
};

}  // namespace

std::string make_token() {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string token;
  for (const char c : random_bytes(32)) {
    const auto byte = static_cast<unsigned char>(c);
    token.push_back(kDigits[byte >> 4]);
    token.push_back(kDigits[byte & 15]);
  }
  return token;
}

std::string make_nonce() { return random_bytes(kNonceBytes); }

std::string read_token_file(const std::string& path) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status {};
  if (file.get() < 0 || fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    const std::string why = file.get() < 0 ? std::strerror(errno) : "not a regular file";
    throw InvalidInput(str("token file ", path, ": ", why,
                           "; make one with: (umask 077; openssl rand -hex 32 > ", path, ")"));
  }
  if ((status.st_mode & 077) != 0) {
    throw AuthenticationError(str(
        "token file ", path, " can be read by other users, who could join the job; use: chmod 600 ", path));
  }
  std::array<char, 4096> bytes{};
  const ssize_t count = read(file.get(), bytes.data(), bytes.size());
  const std::string_view token = trim({bytes.data(), count > 0 ? static_cast<std::size_t>(count) : 0});
  if (token.size() < kMinTokenBytes) {
    throw InvalidInput(str("token file ", path, " holds ", token.size(),
                           " characters, but a token has at least ", kMinTokenBytes,
                           "; make one with: openssl rand -hex 32"));
  }
  return std::string(token);
}

std::string hmac_sha256(std::string_view key, std::string_view data) {
  std::string mac(32, '\0');
  unsigned int size = 0;
  const unsigned char* done = HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                                   reinterpret_cast<const unsigned char*>(data.data()), data.size(),
                                   reinterpret_cast<unsigned char*>(mac.data()), &size);
  CP_INVARIANT(done != nullptr && size == mac.size(), "HMAC-SHA256 of OpenSSL");
  return mac;
}

bool equal_in_constant_time(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

Session::Session(std::string_view token, const Handshake& handshake, Side self)
    : seal_key_(hmac_sha256(token, transcript(handshake, self))),
      open_key_(hmac_sha256(token, transcript(handshake, self == Side::server ? Side::rank : Side::server))) {
}

proto::RendezvousFrame Session::seal(const std::string& message) {
  auto [sealed, mac] = Aead(seal_key_, sealed_++).seal(message);
  proto::RendezvousFrame frame;
  frame.set_mac(std::move(mac));
  frame.set_message(std::move(sealed));
  return frame;
}

std::string Session::open(const proto::RendezvousFrame& frame) {
  std::optional<std::string> message = Aead(open_key_, opened_).open(frame.message(), frame.mac());
  if (!message) {
    throw AuthenticationError(
        str("frame ", opened_, " has a wrong seal: it was altered, sent again or left out"));
  }
  ++opened_;
  return *std::move(message);
}

}  // namespace cp::runtime
