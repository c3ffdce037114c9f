"""What all frameworks are asked: a tool with a schema, an answer with a schema, and a question for both."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

QUESTION = "How is the weather in Oslo?"
CITIES = ("Oslo", "Paris")


class Weather(BaseModel):
    """The weather of a city."""
    model_config = ConfigDict(extra="forbid")
    city: Literal["Oslo", "Paris"]
    days: int = Field(ge=1, le=9)


class Advice(BaseModel):
    """What to take along."""
    model_config = ConfigDict(extra="forbid")
    sky: Literal["rain", "sun"]
    umbrella: bool


FUNCTION = {"name": "get_weather", "description": "The weather of a city.", "parameters": Weather.model_json_schema()}
TOOL = {"type": "function", "function": FUNCTION}
NAMED = {"type": "function", "function": {"name": "get_weather"}}


def forecast(city):
    return f"Rain in {city}."
