#include "sharing/lazy_translator.h"

#include <chrono>
#include <fstream>
#include <future>
#include <limits>

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/file.h"
#include "device/device.h"

namespace droidspeak {
namespace {

constexpr LazyTranslator::Shape kShape{.num_layers = 3, .kv_columns = 4, .d_model = 6};

LinearMap make_map(size_t columns, float value) {
  return {1, std::vector<float>(columns, value), std::vector<float>(columns, 0.5f),
          std::vector<float>(columns, 0.25f)};
}

class LazyMaps : public testing::Test {
 protected:
  LazyMaps() : device_(make_cpu_device()), ops_(make_cpu_ops(*device_, 1)) { save(0.5f); }

  void save(float value) {
    TranslationMaps maps;
    maps.kv[1] = make_map(8, value);
    maps.inputs[2] = make_map(6, 1.0f);
    save_translation(path_, maps);
  }

  LazyTranslator lazy() { return {*ops_, path_, kShape}; }

  TemporaryFolder folder_;
  std::filesystem::path path_ = folder_.path() / "maps.safetensors";
  std::unique_ptr<Device> device_;
  std::unique_ptr<Ops> ops_;
};

TEST_F(LazyMaps, AreReadOnceWhenAskedFor) {
  LazyTranslator maps = lazy();
  const std::string content = read_file(path_);
  EXPECT_EQ(maps.digest(), sha256(std::as_bytes(std::span(content))));
  auto first = maps.get();
  ASSERT_TRUE(first);
  EXPECT_NE((*first)->kv(1), nullptr);
  EXPECT_EQ((*first)->kv(0), nullptr);
  EXPECT_NE((*first)->input(2), nullptr);
  std::filesystem::remove(path_);
  auto second = maps.get();
  ASSERT_TRUE(second);
  EXPECT_EQ(*first, *second);
}

TEST_F(LazyMaps, WithValuesThatAreNotFiniteAreFoundOutWhenAskedFor) {
  save(std::numeric_limits<float>::quiet_NaN());
  LazyTranslator maps = lazy();
  EXPECT_TRUE(maps.is_usable());
  EXPECT_FALSE(maps.get());
  EXPECT_NE(maps.get().error().message.find("not finite"), std::string::npos);
  EXPECT_FALSE(maps.is_usable());
}

TEST_F(LazyMaps, ThatWereReplacedOrRemovedSinceTheStartAreNotUsed) {
  LazyTranslator replaced = lazy();
  save(0.75f);
  EXPECT_FALSE(replaced.get());
  save(0.5f);
  EXPECT_FALSE(replaced.get()) << "an error stays";
  LazyTranslator removed = lazy();
  std::filesystem::remove(path_);
  EXPECT_FALSE(removed.get());
}

TEST_F(LazyMaps, ThatAreReplacedWhileTheyAreReadAreNotUsed) {
  LazyTranslator maps(*ops_, path_, kShape, [this](const auto& path, const auto& shape) {
    save(0.75f);
    return load_translation(path, shape.num_layers, shape.kv_columns, shape.d_model);
  });
  auto read = maps.get();
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, ErrorCode::kDataCorrupt);
  EXPECT_NE(read.error().message.find("was changed"), std::string::npos);
}

TEST_F(LazyMaps, WhatGoesWrongOtherwiseIsSaidWithTheirName) {
  LazyTranslator maps(*ops_, path_, kShape, [](const auto&, const auto&) -> TranslationMaps {
    throw std::runtime_error("no memory for them");
  });
  auto read = maps.get();
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(read.error().message.find("maps.safetensors: no memory for them"), std::string::npos);
}

// As on a disk that hangs.
TEST_F(LazyMaps, AreNotWaitedForForEver) {
  std::promise<void> gate;
  std::shared_future<void> opened = gate.get_future().share();
  LazyTranslator maps(*ops_, path_, kShape, [opened](const auto& path, const auto& shape) {
    opened.wait();
    return load_translation(path, shape.num_layers, shape.kv_columns, shape.d_model);
  });
  EXPECT_TRUE(maps.is_usable());
  auto early = maps.get(std::chrono::milliseconds(1));
  ASSERT_FALSE(early);
  EXPECT_EQ(early.error().code, ErrorCode::kUnavailable);
  EXPECT_FALSE(maps.is_usable()) << "nobody else waits";
  gate.set_value();
  EXPECT_TRUE(maps.get());
  EXPECT_TRUE(maps.is_usable());
}

TEST_F(LazyMaps, ThatDoNotFitAreRefusedAtTheStart) {
  EXPECT_THROW(LazyTranslator(*ops_, path_, {.num_layers = 2, .kv_columns = 4, .d_model = 6}),
               Failure);
  EXPECT_THROW(LazyTranslator(*ops_, path_, {.num_layers = 3, .kv_columns = 5, .d_model = 6}),
               Failure);
  EXPECT_THROW(LazyTranslator(*ops_, path_, {.num_layers = 3, .kv_columns = 4, .d_model = 7}),
               Failure);
  EXPECT_THROW(LazyTranslator(*ops_, folder_.path() / "none.safetensors", kShape), Failure);
  std::filesystem::resize_file(path_, std::filesystem::file_size(path_) - 4);
  EXPECT_THROW(lazy(), Failure) << "cut short";
}

}  // namespace
}  // namespace droidspeak
