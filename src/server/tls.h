// Certificate and key for HTTPS.
#pragma once

#include <filesystem>
#include <memory>

struct ssl_ctx_st;
struct ssl_st;

namespace droidspeak {

class TlsContext {
 public:
  // PEM files. Throws Failure naming the file that cannot be read or does not match the other.
  TlsContext(const std::filesystem::path& certificate, const std::filesystem::path& key);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  ssl_ctx_st* get() const { return context_.get(); }

 private:
  struct Free {
    void operator()(ssl_ctx_st* context) const;
  };

  std::unique_ptr<ssl_ctx_st, Free> context_;
};

}  // namespace droidspeak
