"""What the official clients can put inside of a field is known by name, so that what is done with
it was decided: it is read, has no effect, or is refused for what it is."""

from __future__ import annotations

import typing
from typing import Any

import anthropic.types as anthropic_types
import anthropic.types.beta as anthropic_beta
import msgspec
import openai.types.chat as openai_chat
import openai.types.responses as openai_responses
import pytest
from openai.types import shared_params
from openai.types.responses import response_create_params, response_input_item_param

from ds4trio.api.schemas import chat, drawing, messages, response_items, responses, tools

PAIRS: list[tuple[Any, type[msgspec.Struct]]] = [
    (openai_chat.ChatCompletionStreamOptionsParam, drawing.StreamOptions),
    (openai_chat.ChatCompletionDeveloperMessageParam, chat.Message),
    (openai_chat.ChatCompletionSystemMessageParam, chat.Message),
    (openai_chat.ChatCompletionUserMessageParam, chat.Message),
    (openai_chat.ChatCompletionAssistantMessageParam, chat.Message),
    (openai_chat.ChatCompletionToolMessageParam, chat.Message),
    (openai_chat.ChatCompletionContentPartTextParam, chat.ContentPart),
    (openai_chat.ChatCompletionContentPartRefusalParam, chat.ContentPart),
    (openai_chat.ChatCompletionContentPartImageParam, chat.ContentPart),
    (openai_chat.ChatCompletionContentPartInputAudioParam, chat.ContentPart),
    (openai_chat.ChatCompletionMessageFunctionToolCallParam, chat.ToolCall),
    (openai_chat.ChatCompletionFunctionToolParam, tools.FunctionTool),
    (shared_params.FunctionDefinition, tools.Function),
    (shared_params.ResponseFormatJSONSchema, tools.ResponseFormat),
    (openai_chat.ChatCompletionNamedToolChoiceParam, tools.ToolChoiceObject),
    (openai_chat.ChatCompletionAllowedToolChoiceParam, tools.ToolChoiceObject),
    (openai_chat.ChatCompletionAllowedToolsParam, tools.AllowedTools),
    (shared_params.Reasoning, responses.ReasoningConfig),
    (response_create_params.StreamOptions, responses.StreamOptions),
    (response_create_params.PromptCacheOptions, responses.PromptCacheOptions),
    (openai_responses.ResponseTextConfigParam, responses.TextConfig),
    (openai_responses.ResponseFormatTextJSONSchemaConfigParam, responses.JsonSchemaFormat),
    (openai_responses.FunctionToolParam, responses.FunctionTool),
    (openai_responses.ToolChoiceFunctionParam, responses.NamedTool),
    (openai_responses.ToolChoiceAllowedParam, responses.AllowedTools),
    (openai_responses.ResponseSteerEventParam, responses.ResponseSteer),
    (openai_responses.EasyInputMessageParam, response_items.Message),
    (openai_responses.ResponseOutputMessageParam, response_items.Message),
    (response_input_item_param.Message, response_items.Message),
    (openai_responses.ResponseInputTextParam, response_items.Part),
    (openai_responses.ResponseOutputTextParam, response_items.Part),
    (openai_responses.ResponseOutputRefusalParam, response_items.Part),
    (openai_responses.ResponseInputImageParam, response_items.Part),
    (openai_responses.ResponseInputFileParam, response_items.Part),
    (openai_responses.ResponseFunctionToolCallParam, response_items.FunctionCall),
    (response_input_item_param.FunctionCallOutput, response_items.FunctionCallOutput),
    (openai_responses.ResponseReasoningItemParam, response_items.Reasoning),
    (response_input_item_param.ItemReference, response_items.ItemReference),
]
IN_MESSAGES: dict[str, type[msgspec.Struct]] = {
    "Message": messages.InputMessage,
    "TextBlock": messages.TextBlock,
    "ThinkingBlock": messages.ThinkingBlock,
    "RedactedThinkingBlock": messages.RedactedThinkingBlock,
    "ToolUseBlock": messages.ToolUseBlock,
    "ToolResultBlock": messages.ToolResultBlock,
    "Tool": messages.CustomTool,
    "ToolChoiceAuto": messages.AutoChoice,
    "ToolChoiceAny": messages.AnyChoice,
    "ToolChoiceTool": messages.ToolNamed,
    "ToolChoiceNone": messages.NoChoice,
    "ThinkingConfigEnabled": messages.ThinkingEnabled,
    "ThinkingConfigAdaptive": messages.ThinkingAdaptive,
    "ThinkingConfigDisabled": messages.ThinkingDisabled,
    "OutputConfig": messages.OutputConfig,
    "Metadata": messages.Metadata,
}
PAIRS += [
    (getattr(place, f"{prefix}{name}Param"), struct)
    for place, prefix in ((anthropic_types, ""), (anthropic_beta, "Beta"))
    for name, struct in IN_MESSAGES.items()
]

REFUSED_BY_NAME = {
    "BetaSystemMessageParam": {"clear_at", "output_config"},
    "BetaThinkingConfigEnabledParam": {"block_binding"},
    "BetaThinkingConfigAdaptiveParam": {"block_binding"},
}
"""As ``docs/api.md`` says. All are of Anthropic's beta."""


@pytest.mark.parametrize(("param", "struct"), PAIRS)
def test_every_name_is_known(param: Any, struct: type[msgspec.Struct]) -> None:
    kinds = typing.get_args(param) or (param,)
    sent = {name for kind in kinds for name in typing.get_type_hints(kind)}
    known = {found.encode_name for found in msgspec.structs.fields(struct)}
    tag = struct.__struct_config__.tag_field
    refused = set[str]().union(*(REFUSED_BY_NAME.get(kind.__name__, ()) for kind in kinds))
    assert sent - known - {tag} == refused
