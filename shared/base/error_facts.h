// ErrorFacts: what an error is about, as data (contract 13): who is at fault, in which operation. Nothing reads it out of a message.
//
//   throw error_with<Deadlock>(message, {.culprits = {2}, .group = "tp[0,1,2,3]"});   // is caught as a Deadlock
//   ...
//   catch (const Error& error) { facts_of(error).culprits; }
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "shared/base/error.h"
#include "shared/base/types.h"

namespace cp {

struct ErrorFacts {
  // The ranks at fault, ascending; of a transfer its sender and its receiver. Empty: not known.
  std::vector<Rank> culprits = {};
  bool is_tie = false;              // the evidence fits each of the culprits alike: one of them is at fault
  Rank sender = -1, receiver = -1;  // of the transfer that is wrong; -1: the error is of no transfer
  std::string operation = {}, group = {};  // "all_gather", "cp[0,1,2,3]"
  std::int64_t sequence = -1;              // of the collective on its group
  bool operator==(const ErrorFacts&) const = default;
};

class HasErrorFacts {
 public:
  explicit HasErrorFacts(ErrorFacts facts) : facts_(std::move(facts)) {}
  virtual ~HasErrorFacts() = default;
  HasErrorFacts(const HasErrorFacts&) = default;
  HasErrorFacts& operator=(const HasErrorFacts&) = default;
  const ErrorFacts& facts() const { return facts_; }

 private:
  ErrorFacts facts_;
};

// An E, one of the types of error.h, that has facts.
template <class E>
class ErrorWithFacts : public E, public HasErrorFacts {
 public:
  ErrorWithFacts(const std::string& message, ErrorFacts facts)
      : E(message), HasErrorFacts(std::move(facts)) {}
};

template <class E>
ErrorWithFacts<E> error_with(const std::string& message, ErrorFacts facts) {
  return {message, std::move(facts)};
}

// Those of the error; without any for one that has none.
inline ErrorFacts facts_of(const std::exception& error) {
  const auto* has = dynamic_cast<const HasErrorFacts*>(&error);
  return has == nullptr ? ErrorFacts{} : has->facts();
}

}  // namespace cp
