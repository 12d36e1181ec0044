"""The corpus `stories` in the source's own ids: 192 wide, sequences of 256 tokens, as long as the longest story.

fpmgm train stories-fp      FP-MDLM, 1/1/1 blocks
fpmgm train stories-mdlm    MDLM, 12 blocks

Network, learning rate and tokens of an update are those of the miniature of poetry; they were not tuned for stories.
`fpmgm prepare stories` makes the corpus. A run that does not find it makes it first, which takes hours.
"""

from dataclasses import replace

from fpmgm.data.stories_text import StoriesConfig
from fpmgm.recipes.mini import TEXT_MINI, TEXT_MINI_MDLM

STORIES_FP = replace(TEXT_MINI, data=StoriesConfig(tokenizer="source", length=256), batch_size=16)

STORIES_MDLM = replace(STORIES_FP, model=TEXT_MINI_MDLM.model)
